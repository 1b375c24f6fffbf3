//! Loading the driver: judging its version, initialising it, listing its devices.

use super::api::Api;
use super::code::{Code, CODE_NO_DEVICE, CODE_STUB_LIBRARY, CODE_SUCCESS};
use super::error::describe;
use super::library::Library;
use crate::base::{Error, Result, Status};
use cudarc::driver::sys::{self, CUdevice, CUresult};
use std::ffi::c_int;

/// The oldest driver that has every required entry point: CUDA 12.0 (`cuStreamGetId`).
pub(super) const OLDEST: c_int = 12_000;

/// The driver library's names, in search order. The driver installs the first; the second is often
/// only a stub for linking, which `cuInit` then reports.
pub const LIBRARY_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// The error if the library search path has no driver; `None` if it has one, which may still not
/// work. Initialises nothing.
pub fn missing() -> Option<Error> {
    Library::open(&LIBRARY_NAMES).err().filter(|e| e.status == Status::NoDevice)
}

/// A loaded and initialised driver with at least one device.
pub(super) struct Loaded {
    pub api: Api,
    /// `1000 * major + 10 * minor`.
    pub version: c_int,
    /// The file it came from.
    pub path: String,
    pub devices: Vec<CUdevice>,
}

/// `CUDA 12.4` from 12040.
pub(super) fn version_text(version: c_int) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

/// Loads and initialises the driver. `NoDevice` means that there is no driver or no device; a
/// driver that exists but cannot be used gives `Unsupported` or `Driver`.
pub(super) fn load(names: &[&str]) -> Result<Loaded> {
    let library = Library::open(names)?;
    let get_version = library.symbol("cuDriverGetVersion");
    let path = library.path_of(get_version);
    if get_version.is_null() {
        return Err(lacking(&path, &["cuDriverGetVersion"], "of unknown version"));
    }
    const _: unsafe fn(*mut c_int) -> CUresult = sys::cuDriverGetVersion;
    // SAFETY: not null, and the driver exports this name with this signature.
    let get_version: unsafe extern "C" fn(*mut c_int) -> Code = unsafe { std::mem::transmute(get_version) };
    let mut version = 0;
    // SAFETY: the one call that is legal before cuInit; it writes one int.
    let code = unsafe { get_version(&mut version) };
    if code == CODE_STUB_LIBRARY {
        return Err(stub(&path));
    }
    if code != CODE_SUCCESS {
        return Err(Error::new(Status::Driver, format!("cuDriverGetVersion in {path} failed with CUDA error {code}")));
    }
    if version < OLDEST {
        return Err(Error::new(
            Status::Unsupported,
            format!(
                "the driver in {path} is for {}, gpumem needs {} or later: update the NVIDIA driver",
                version_text(version),
                version_text(OLDEST)
            ),
        ));
    }
    let api =
        Api::resolve(&library).map_err(|names| lacking(&path, &names, &format!("for {}", version_text(version))))?;

    // SAFETY: flags must be 0; callable any number of times from any thread.
    let code = unsafe { (api.cuInit)(0) };
    match code {
        CODE_SUCCESS => {}
        CODE_STUB_LIBRARY => return Err(stub(&path)),
        CODE_NO_DEVICE => return Err(no_device(&path, version)),
        _ => {
            return Err(Error::new(
                Status::Driver,
                format!(
                    "cuInit in {path} ({}) failed: {}; check that nvidia-smi works and that the kernel module and the \
                     library have the same version",
                    version_text(version),
                    describe(&api, code)
                ),
            ))
        }
    }
    let mut count = 0;
    // SAFETY: initialised; writes one int.
    check(&api, unsafe { (api.cuDeviceGetCount)(&mut count) }, "cuDeviceGetCount")?;
    let mut devices = Vec::new();
    for ordinal in 0..count {
        let mut device = 0;
        // SAFETY: writes one CUdevice; the ordinal is below the count.
        check(&api, unsafe { (api.cuDeviceGet)(&mut device, ordinal) }, "cuDeviceGet")?;
        devices.push(device);
    }
    if devices.is_empty() {
        return Err(no_device(&path, version));
    }
    Ok(Loaded { api, version, path, devices })
}

fn check(api: &Api, code: Code, call: &str) -> Result<()> {
    if code == CODE_SUCCESS {
        return Ok(());
    }
    Err(Error::new(Status::Driver, format!("{call} failed: {}", describe(api, code))))
}

fn no_device(path: &str, version: c_int) -> Error {
    Error::new(
        Status::NoDevice,
        format!(
            "the driver in {path} ({}) sees no device; check nvidia-smi and CUDA_VISIBLE_DEVICES",
            version_text(version)
        ),
    )
}

fn stub(path: &str) -> Error {
    Error::new(
        Status::NoDevice,
        format!(
            "{path} is the CUDA toolkit's stub for linking, not a driver; install the NVIDIA driver and take the stubs \
             folder out of LD_LIBRARY_PATH"
        ),
    )
}

fn lacking(path: &str, names: &[&str], what: &str) -> Error {
    Error::new(
        Status::Unsupported,
        format!(
            "the driver in {path}, {what}, lacks {}, which every driver for {} or later has: update or repair the \
             NVIDIA driver, or remove what replaces it",
            names.join(", "),
            version_text(OLDEST)
        ),
    )
}
