//! The calls of the section that `context` begins: starting with settings, and reading those in
//! force.

use super::apply::{apply, fill};
use super::context_options::gpumem_context_options;
use crate::base::Error;
use crate::capi::call::error::gpumem_status;
use crate::capi::call::guard::{guard, guard_value};
use crate::capi::call::options;
use crate::context::{settings, Config, Context};
use std::ffi::{c_char, CString};
use std::sync::OnceLock;

/// Starts gpumem now, with explicit settings.
///
/// opts may be NULL, for the environment's settings. The options, and what they point to, are read
/// and not kept.
/// Errors: GPUMEM_ERROR_INVALID for a field out of range, or when gpumem has started already, by
/// any call that needs its state; GPUMEM_ERROR_CONFIG, _DRIVER, _NO_DEVICE, _FORKED. After an error
/// gpumem has not started, and this or any other call may start it.
#[no_mangle]
pub unsafe extern "C" fn gpumem_init(opts: *const gpumem_context_options) -> gpumem_status {
    guard(|| {
        let mut config = Config::from_env()?;
        // SAFETY: the caller passes NULL or options whose size field is true.
        if let Some(options) = unsafe { options::read_if_any(opts) }? {
            // SAFETY: its strings are NULL or strings by the caller's promise.
            unsafe { apply(&options, &mut config) }?;
        }
        Context::init_global(config).map(|_| ())
    })
}

/// Returns the kind of device in use: "cuda" or "host", or "none" when gpumem cannot start.
/// gpumem_last_error then says why.
///
/// Starts gpumem if need be. The string is static, never NULL.
#[no_mangle]
pub extern "C" fn gpumem_backend_name() -> *const c_char {
    guard_value(c"none", || match Context::global()?.driver().backend() {
        "cuda" => Ok(c"cuda"),
        "host" => Ok(c"host"),
        other => Err(Error::internal(format!("backend {other:?} has no name in the C ABI"))),
    })
    .as_ptr()
}

/// The settings in force: those of gpumem_init where it gave any, else the environment's.
///
/// out->size must be set (GPUMEM_INIT). Starts gpumem if need be. A field with a constant for
/// nothing (GPUMEM_LOG_NOTHING, GPUMEM_RECORD_STACKS_NONE, GPUMEM_SNAPSHOT_EVENTS_NONE,
/// GPUMEM_PINNED_CHUNKS_NONE, those that end in _OFF) has that constant. Another is 0 where the
/// setting means none, never, the device's granularity, or all that the device or node has.
/// Otherwise a field, also host_mode and arena_quarantine, has the value in force; only page_size
/// has the value set, even if the granularity of a device is larger. disk, record and snapshot are
/// static strings, or NULL when there are none. `gpumem doctor` shows the same, and where each
/// comes from.
/// Errors: GPUMEM_ERROR_INVALID when out is NULL or its size impossible.
#[no_mangle]
pub unsafe extern "C" fn gpumem_settings_get(out: *mut gpumem_context_options) -> gpumem_status {
    guard(|| {
        // SAFETY: the caller passes NULL or a structure whose size field is true.
        unsafe { options::check_output(out) }?;
        let config = Context::global()?.config();
        let value = gpumem_context_options {
            disk: text(0, "GPUMEM_DISK", config),
            record: text(1, "GPUMEM_RECORD", config),
            snapshot: text(2, "GPUMEM_SNAPSHOT", config),
            ..fill(config)
        };
        // SAFETY: as above, and writable by the contract.
        unsafe { options::write(out, &value) }
    })
}

/// What a setting is, as a string that stays: the settings in force do not change. `at` is the
/// setting's own place.
fn text(at: usize, variable: &str, config: &Config) -> *const c_char {
    static TEXTS: [OnceLock<Option<CString>>; 3] = [const { OnceLock::new() }; 3];
    let text = || settings::find(variable).map(|s| s.text(config)).filter(|text| !text.is_empty());
    let kept = TEXTS.get(at).and_then(|cell| cell.get_or_init(|| text().and_then(|t| CString::new(t).ok())).as_ref());
    kept.map_or(std::ptr::null(), |text| text.as_ptr())
}
