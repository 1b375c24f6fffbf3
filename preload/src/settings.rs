//! What the environment says, read once by the first hook that needs it.

use gpumem::base::size;
use std::ffi::OsString;
use std::sync::OnceLock;

/// How `cuMemFree` makes sure that the memory is no longer in use when it is handed out again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Free {
    /// The host waits for all work of the context, as the driver does.
    Sync,
    /// The memory waits, until the device has passed everything that was submitted before the free.
    Marker,
}

#[derive(Debug)]
pub struct Settings {
    pub free: Free,
    /// Requests of this many bytes and more are the driver's.
    pub native: u64,
    /// Whether a summary is printed at the end.
    pub stats: bool,
    /// `GPUMEM_LOG`.
    pub log: u32,
    /// Why gpumem stays out of everything.
    pub wrong: Option<String>,
}

/// The settings of this process.
pub fn get() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let settings = read(&|name| std::env::var_os(name));
        if let Some(wrong) = &settings.wrong {
            say(&format!("{wrong}; the program runs without gpumem"));
        }
        settings
    })
}

fn read(get: &dyn Fn(&str) -> Option<OsString>) -> Settings {
    let text = |name: &str| get(name).map(|v| v.to_string_lossy().into_owned());
    let mut wrong = None;
    let mut refuse = |name: &str, value: &str, accepted: &str| {
        wrong.get_or_insert(format!("{name}={value:?} is not understood; it may be {accepted}"));
    };
    let free = match text("GPUMEM_FREE").as_deref() {
        None | Some("marker") => Free::Marker,
        Some("sync") => Free::Sync,
        Some(other) => {
            refuse("GPUMEM_FREE", other, "sync or marker");
            Free::Sync
        }
    };
    let native = text("GPUMEM_NATIVE").map_or(u64::MAX, |v| {
        size::parse(&v).unwrap_or_else(|_| {
            refuse("GPUMEM_NATIVE", &v, "a size");
            u64::MAX
        })
    });
    let stats = match text("GPUMEM_STATS").as_deref() {
        None | Some("0" | "off") => false,
        Some("1" | "on") => true,
        Some(other) => {
            refuse("GPUMEM_STATS", other, "on or off");
            false
        }
    };
    let log = text("GPUMEM_LOG").and_then(|v| v.parse().ok()).unwrap_or(1);
    Settings { free, native, stats, log, wrong }
}

/// One line on stderr. No lock and no buffer, so that it serves at any time.
pub fn say(text: &str) {
    let line = format!("gpumem: {text}\n");
    // SAFETY: writes the bytes of a string.
    let _ = unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}
