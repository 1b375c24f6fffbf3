//! The environment's settings, read once by the first hook that needs them.

use gpumem::base::Error;
use gpumem::context::config::Backend;
use gpumem::context::preload::PreloadSettings;
use gpumem::context::Config;
use gpumem::driver::process::Uncancelled;
use std::sync::OnceLock;

#[derive(Debug)]
pub struct Settings {
    /// The settings that only this library reads; the defaults if one is wrong.
    pub own: PreloadSettings,
    /// `GPUMEM_LOG`.
    pub log: u32,
    /// Whether one is wrong, so that gpumem serves nothing.
    wrong: bool,
}

/// The settings of this process.
pub fn get() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let log = std::env::var("GPUMEM_LOG").ok().and_then(|v| v.parse().ok()).unwrap_or(1);
        let own = PreloadSettings::from_lookup(&|name| std::env::var_os(name));
        let wrong = own.as_ref().inspect_err(|e| say_wrong(log, e)).is_err();
        Settings { own: own.unwrap_or_default(), log, wrong }
    })
}

/// The library's settings, read when they are first needed; `None`, said once, if one is wrong.
pub fn config() -> Option<&'static Config> {
    static CONFIG: OnceLock<Option<Config>> = OnceLock::new();
    let read = || {
        if get().wrong {
            return None;
        }
        // The driver serves captures. A request names its stream and never an arena or a
        // reservation.
        let fit = |config| Config { backend: Backend::Cuda, tiers: false, ..config };
        Config::from_env().map(fit).inspect_err(|e| say_wrong(get().log, e)).ok()
    };
    CONFIG.get_or_init(read).as_ref()
}

fn say_wrong(log: u32, e: &Error) {
    if log >= 1 {
        say(&format!("{}; the program runs without gpumem", e.message));
    }
}

/// Writes a line to stderr, without lock or buffer, so that it works at any time.
pub fn say(text: &str) {
    let line = format!("gpumem: {text}\n");
    // Rust's frames do not survive a forced unwinding.
    let _uncancelled = Uncancelled::new();
    // SAFETY: writes the bytes of a string.
    let _ = unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}
