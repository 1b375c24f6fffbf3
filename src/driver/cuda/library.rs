//! A shared library: opening it, looking names up in it.

use crate::base::{Error, Result, Status};
use std::ffi::{c_char, c_void, CStr, CString};
use std::sync::OnceLock;

/// `dlsym`.
pub type LookUp = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

static LOOK_UP: OnceLock<LookUp> = OnceLock::new();

/// Looks names up with `f` from now on. A library that replaces the process's `dlsym` uses this to
/// bypass its own. The first call decides.
pub fn look_up_with(f: LookUp) {
    let _ = LOOK_UP.set(f);
}

/// A shared library, never unloaded.
pub(super) struct Library {
    handle: *mut c_void,
    name: String,
}

impl Library {
    /// Opens the first of `names` that exists. If that one does not load, the search ends with an
    /// error.
    pub(super) fn open(names: &[&str]) -> Result<Library> {
        for name in names {
            let c_name = CString::new(*name).map_err(|_| Error::invalid(format!("{name:?} is not a library name")))?;
            // SAFETY: the name is a C string. Loading runs the library's constructors; the CUDA
            // driver is made for it.
            let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Library { handle, name: name.to_string() });
            }
            let why = last_dl_error();
            if !is_absence(name, &why) {
                return Err(Error::new(
                    Status::Unsupported,
                    format!("the CUDA driver library {name} exists but does not load: {why}; repair the driver's installation"),
                ));
            }
        }
        Err(Error::new(
            Status::NoDevice,
            format!(
                "no CUDA driver: none of {} is in the library search path; install the NVIDIA driver",
                names.join(", ")
            ),
        ))
    }

    /// The address of an exported name, or null.
    pub(super) fn symbol(&self, name: &str) -> *mut c_void {
        match CString::new(name) {
            Ok(c_name) => {
                let look_up = LOOK_UP.get().copied().unwrap_or(libc::dlsym);
                // SAFETY: the handle is open for the life of the process and the name is a C
                // string.
                unsafe { look_up(self.handle, c_name.as_ptr()) }
            }
            Err(_) => std::ptr::null_mut(),
        }
    }

    /// The file that `symbol` came from, as far as the loader can tell.
    pub(super) fn path_of(&self, symbol: *mut c_void) -> String {
        // SAFETY: all-zero is a valid Dl_info (null pointers).
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: dladdr accepts any address and fills `info` when it returns non-zero.
        if unsafe { libc::dladdr(symbol, &mut info) } != 0 && !info.dli_fname.is_null() {
            // SAFETY: the loader's own C string, which lives as long as the library: for ever.
            return unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned();
        }
        self.name.clone()
    }
}

/// Whether the loader's message `why` says that `name` does not exist. The message is in the
/// process's language, as is the system's text for that error, and begins with `name` unless a
/// library that it depends on is missing.
fn is_absence(name: &str, why: &str) -> bool {
    let absent = std::io::Error::from_raw_os_error(libc::ENOENT).to_string();
    let absent = absent.split(" (os error").next().unwrap_or(&absent);
    why.starts_with(name) && why.contains(absent)
}

fn last_dl_error() -> String {
    // SAFETY: dlerror has no preconditions; its text is this thread's and is copied before the next
    // dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown reason".into();
    }
    // SAFETY: not null, hence a C string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
