//! The environment's settings, read once by the first hook that needs them.

use gpumem::context::preload::PreloadSettings;
use std::sync::OnceLock;

#[derive(Debug)]
pub struct Settings {
    /// The settings that only this library reads; the defaults if one is wrong.
    pub own: PreloadSettings,
    /// `GPUMEM_LOG`.
    pub log: u32,
    /// Why gpumem serves nothing, if it does not.
    pub wrong: Option<String>,
}

/// The settings of this process.
pub fn get() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let (own, wrong) = match PreloadSettings::from_lookup(&|name| std::env::var_os(name)) {
            Ok(own) => (own, None),
            Err(e) => {
                say(&format!("{}; the program runs without gpumem", e.message));
                (PreloadSettings::default(), Some(e.message))
            }
        };
        let log = std::env::var("GPUMEM_LOG").ok().and_then(|v| v.parse().ok()).unwrap_or(1);
        Settings { own, log, wrong }
    })
}

/// Writes a line to stderr, without lock or buffer, so that it works at any time.
pub fn say(text: &str) {
    let line = format!("gpumem: {text}\n");
    // SAFETY: writes the bytes of a string.
    let _ = unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}
