#![deny(unsafe_code, clippy::unwrap_used, clippy::expect_used)]
//! Which driver a process works on, and why.

use super::config::{Backend, Config, HostMode};
use crate::base::{Error, Result, Status};
use crate::driver::{cuda, host, process, Driver};
use std::sync::Arc;

/// A driver, and the reason why it was chosen.
pub struct Choice {
    /// The driver.
    pub driver: Arc<dyn Driver>,
    /// A sentence for people.
    pub why: String,
    /// Whether it stands in for a GPU that was looked for and not found.
    pub fallback: bool,
}

/// Opens the driver that the configuration asks for. Where `auto` finds no CUDA driver or device,
/// the host device takes its place and one line on stderr says so (from log level 1); any other
/// failure of CUDA is an error.
pub fn open(config: &Config) -> Result<Arc<dyn Driver>> {
    let choice = choose(config)?;
    if choice.fallback && config.log >= 1 {
        process::say(format_args!("{}; GPUMEM_BACKEND=host asks for it without this line", choice.why));
    }
    Ok(choice.driver)
}

/// Like [`open`], silently, with the reason.
pub fn choose(config: &Config) -> Result<Choice> {
    choose_from(config, &|| Ok(cuda::open()?), &|| open_host(config))
}

/// What [`open`] would do and why, for people: one paragraph, whether it succeeds or not.
pub fn explain(config: &Config) -> String {
    match choose(config) {
        Ok(choice) => choice.why,
        Err(e) => format!("no backend: {e}"),
    }
}

fn open_host(config: &Config) -> Result<Arc<dyn Driver>> {
    Ok(host::HostDriver::new(host::HostOptions {
        devices: config.host_devices,
        bytes_per_device: config.host_bytes,
        seed: config.host_seed,
        eager: config.host_mode() == HostMode::Eager,
        check: config.host_mode() != HostMode::Eager,
        tell: match config.host_mode() {
            HostMode::Eager => host::Tell::Nobody,
            HostMode::Simulate => host::Tell::Stderr,
            HostMode::Abort => host::Tell::Abort,
        },
        ..Default::default()
    })?)
}

type Opener<'a> = &'a dyn Fn() -> Result<Arc<dyn Driver>>;

fn choose_from(config: &Config, cuda: Opener<'_>, host: Opener<'_>) -> Result<Choice> {
    let host_device = |why: String, fallback| Ok(Choice { driver: host()?, why, fallback });
    match config.backend {
        Backend::Host => host_device("the host device: GPUMEM_BACKEND=host asks for it".into(), false),
        Backend::Cuda => match cuda() {
            Ok(driver) => Ok(found(driver, "GPUMEM_BACKEND=cuda asks for it")),
            Err(e) => Err(or_host(e.context("GPUMEM_BACKEND=cuda asks for a GPU"))),
        },
        Backend::Auto => match cuda() {
            Ok(driver) => Ok(found(driver, "there is a driver and a device")),
            Err(e) if e.status == Status::NoDevice => {
                host_device(format!("using the host device, which is ordinary memory and no GPU: {}", e.message), true)
            }
            Err(e) => Err(or_host(e)),
        },
    }
}

/// The error, with the way out that is always there.
fn or_host(e: Error) -> Error {
    Error { message: format!("{}; GPUMEM_BACKEND=host works without a GPU", e.message), ..e }
}

fn found(driver: Arc<dyn Driver>, why: &str) -> Choice {
    let (count, version) = (driver.device_count(), driver.version());
    let devices = if count == 1 { "1 device".to_string() } else { format!("{count} devices") };
    Choice { why: format!("{} ({version}, {devices}): {why}", driver.backend()), driver, fallback: false }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    /// The error that a configuration ends in when CUDA gives this status. The host device, if
    /// asked, fails with an error of its own.
    fn with(backend: Backend, cuda: Status) -> Error {
        let config = Config { backend, ..Config::default() };
        let cuda = || Err(Error::new(cuda, "the reason"));
        choose_from(&config, &cuda, &|| Err(Error::internal("host was asked"))).err().unwrap()
    }

    #[test]
    fn auto_takes_the_host_device_only_when_there_is_no_gpu() {
        assert_eq!(with(Backend::Auto, Status::NoDevice).message, "host was asked");
        for status in [Status::Unsupported, Status::Driver, Status::OutOfMemory] {
            let e = with(Backend::Auto, status);
            assert_eq!(e.status, status);
            assert!(e.message.contains("the reason") && e.message.contains("GPUMEM_BACKEND=host"), "{e}");
        }
    }

    #[test]
    fn cuda_never_falls_back_and_host_never_looks_for_a_gpu() {
        let e = with(Backend::Cuda, Status::NoDevice);
        assert_eq!(e.status, Status::NoDevice);
        assert!(e.message.contains("GPUMEM_BACKEND=cuda") && e.message.contains("the reason"), "{e}");
        let config = Config { backend: Backend::Host, ..Config::default() };
        let e = choose_from(&config, &|| panic!("CUDA was asked"), &|| Err(Error::internal("host was asked")));
        assert_eq!(e.err().unwrap().message, "host was asked");
    }
}
