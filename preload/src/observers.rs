//! What shows all devices at once: the page of counters, and the snapshot of the process's end.

use crate::settings;
use gpumem::base::DeviceId;
use gpumem::context::{join, write_wanted, Config, Context};
use gpumem::observe::page::{self, Page};
use gpumem::observe::Recorder;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The page, once it is wanted; `None` if it cannot be published.
static PAGE: OnceLock<Option<Page>> = OnceLock::new();
/// The last snapshot of each device that has been reset, by number.
static ENDED: Mutex<BTreeMap<u32, Value>> = Mutex::new(BTreeMap::new());

/// Publishes what `text` says until the process ends, if that is wanted and not done yet.
pub fn start_page(config: &Config, text: fn() -> String) {
    let publish = || {
        let published = Page::publish(page::path(std::process::id()), text);
        published.inspect_err(|e| say(&format!("no page of counters: {e}"))).ok()
    };
    if config.stats_page {
        PAGE.get_or_init(publish);
    }
}

fn say(text: &str) {
    if settings::get().log >= 1 {
        settings::say(text);
    }
}

/// Keeps what a device has whose context is about to end, for the snapshot of the process's end.
pub fn ends(dev: DeviceId, pool: &Context) {
    if pool.config().snapshot_on.exit {
        ENDED.lock().unwrap_or_else(PoisonError::into_inner).insert(dev.0, pool.snapshot("exit"));
    }
}

/// Runs as the process ends, with the devices that are served: writes what is recorded, and the
/// snapshot if it is wanted.
pub fn leave<'a>(served: impl Iterator<Item = (DeviceId, &'a Context)>) {
    let mut ended = std::mem::take(&mut *ENDED.lock().unwrap_or_else(PoisonError::into_inner));
    let mut all = Vec::new();
    for (dev, pool) in served.filter(|(_, pool)| pool.config().snapshot_on.exit) {
        ended.remove(&dev.0);
        all.push(pool.snapshot("exit"));
    }
    // The latest knows the most of what it says of the process.
    all.extend(ended.into_values());
    all.sort_by_key(|picture| Reverse(picture.get("unix_ms").and_then(Value::as_u64)));
    let picture = join(all.into_iter());
    if let Some((picture, config)) = picture.and_then(|picture| Some((picture, settings::config()?))) {
        write_wanted(config, &picture);
    }
    // A device that was reset is not served any more, but its recording goes on until now.
    Recorder::of_process().end();
    if let Some(Some(page)) = PAGE.get() {
        page.withdraw();
    }
}
