//! Opening the library the way its users do: through the environment and the process's one context.

use clap::ValueEnum;
use gpumem::base::{DeviceId, Error, Result, Status};
use gpumem::context::config::{self, Config};
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

/// Where to run, on the command line.
#[derive(clap::Args)]
pub struct Place {
    /// Device kind to run on, overriding a valid GPUMEM_BACKEND.
    #[arg(long, value_enum)]
    pub backend: Option<Backend>,
    /// Device to allocate on.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: u32,
}

/// The settings of the environment, with `backend` in place of `GPUMEM_BACKEND` where it is given.
pub fn config(backend: Option<Backend>) -> Result<Config> {
    Ok(with_backend(Config::from_env()?, backend))
}

/// The settings with `backend`, where it is given.
pub fn with_backend(config: Config, backend: Option<Backend>) -> Config {
    let backend = match backend {
        None => config.backend,
        Some(Backend::Auto) => config::Backend::Auto,
        Some(Backend::Cuda) => config::Backend::Cuda,
        Some(Backend::Host) => config::Backend::Host,
    };
    Config { backend, ..config }
}

/// Opens the process's context as a program that links the library does. Call it once in a process.
pub fn open(config: Config) -> Result<&'static Context> {
    Context::init_global(config)
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
