//! A device made of ordinary memory.
// Placeholder until the host device is merged; only the signature that `context::backend` uses.
#![allow(missing_docs)]
#[derive(Default)]
pub struct HostOptions {
    pub devices: u32,
    pub bytes_per_device: u64,
    pub seed: u64,
    pub eager: bool,
}
pub struct HostDriver;
impl HostDriver {
    pub fn new(_: HostOptions) -> crate::base::Result<std::sync::Arc<dyn super::Driver>> {
        Err(crate::base::Error::internal("the host device is not merged yet"))
    }
}
