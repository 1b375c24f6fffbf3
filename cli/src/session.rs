//! Opening the library the way its users do: through the environment and the process's one context.

use clap::ValueEnum;
use gpumem::base::{DeviceId, Error, Result, Status};
use gpumem::context::Context;

/// Which driver to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// CUDA when there is a driver and a device, else the host device.
    Auto,
    /// CUDA or an error.
    Cuda,
    /// The host device: no GPU needed.
    Host,
}

/// Opens the process's context. `backend` is short for setting `GPUMEM_BACKEND`, so everything else is configured
/// exactly as it is for a program that links the library. Call before any thread is started.
pub fn open(backend: Option<Backend>) -> Result<&'static Context> {
    if let Some(backend) = backend {
        let value = match backend {
            Backend::Auto => "auto",
            Backend::Cuda => "cuda",
            Backend::Host => "host",
        };
        std::env::set_var("GPUMEM_BACKEND", value);
    }
    Context::global()
}

/// Device `ordinal`, made current on this thread, or an error that says which devices there are.
pub fn device(ctx: &Context, ordinal: u32) -> Result<DeviceId> {
    let count = ctx.driver().device_count();
    if ordinal >= count {
        return Err(Error::new(
            Status::NoDevice,
            format!("device {ordinal} was asked for, but there {}", present(count)),
        ));
    }
    let dev = DeviceId(ordinal);
    ctx.driver().set_current_device(dev)?;
    Ok(dev)
}

fn present(count: u32) -> String {
    match count {
        0 => "is no device".to_string(),
        1 => "is only device 0".to_string(),
        n => format!("are devices 0 to {}", n - 1),
    }
}
