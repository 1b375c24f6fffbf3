//! Facts about a device, and the description of memory to create on it.

use super::code::{CODE_INVALID_VALUE, CODE_SUCCESS};
use super::device::Device;
use super::driver::CudaDriver;
use crate::base::{size, DeviceId, Result};
use crate::driver::{numa, DeviceProps, PhysFlags};
use cudarc::driver::sys::{
    CUdevice_attribute, CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPool_attribute,
};
use std::ffi::{c_int, CStr};
use std::sync::atomic::Ordering;

pub(super) const POSIX_FD: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// The description of memory for `cuMemCreate`.
pub(super) fn physical(device: &Device, flags: PhysFlags) -> CUmemAllocationProp {
    // SAFETY: a plain C struct of integers and a pointer; zero is the documented default of each.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.raw };
    if flags.posix_fd {
        prop.requestedHandleTypes = POSIX_FD;
    }
    prop.allocFlags.gpuDirectRDMACapable = flags.rdma.into();
    prop
}

impl CudaDriver {
    fn attribute(&self, device: &Device, attribute: CUdevice_attribute) -> Result<c_int> {
        let mut value = 0;
        // SAFETY: a device of this driver; writes one int.
        let code = unsafe { (self.api.cuDeviceGetAttribute)(&mut value, attribute, device.raw) };
        // An attribute newer than the driver counts as unsupported.
        if code == CODE_INVALID_VALUE {
            return Ok(0);
        }
        self.check(code, "cuDeviceGetAttribute", || format!("{attribute:?}"))?;
        Ok(value)
    }

    /// The device's place on the PCI bus, where the driver says.
    fn pci_address(&self, device: &Device) -> Option<String> {
        let mut address = [0u8; 64];
        // SAFETY: writes at most the given number of bytes, with a terminating zero.
        let code =
            unsafe { (self.api.cuDeviceGetPCIBusId?)(address.as_mut_ptr().cast(), address.len() as c_int, device.raw) };
        let text = CStr::from_bytes_until_nul(&address).ok().filter(|_| code == CODE_SUCCESS)?;
        text.to_str().ok().map(str::to_string)
    }

    pub(super) fn read_props(&self, dev: DeviceId, device: &Device) -> Result<DeviceProps> {
        use CUdevice_attribute as A;
        let mut name = [0u8; 256];
        // SAFETY: writes at most the given number of bytes, with a terminating zero.
        let code = unsafe { (self.api.cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int, device.raw) };
        self.check(code, "cuDeviceGetName", || format!("device {dev}"))?;
        let name = CStr::from_bytes_until_nul(&name).map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let mut total = 0;
        // SAFETY: writes one size.
        let code = unsafe { (self.api.cuDeviceTotalMem_v2)(&mut total, device.raw) };
        self.check(code, "cuDeviceTotalMem", || format!("device {dev}"))?;
        let vmm = self.attribute(device, A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? != 0;
        let mut granularity = 2 * size::MIB as usize;
        if vmm {
            // Any context will do, as the description names the device; the other calls here need
            // none.
            let _bound = self.bind_near(dev)?;
            let prop = physical(device, PhysFlags::default());
            let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
            // SAFETY: a complete description; writes one size.
            let code = unsafe { (self.api.cuMemGetAllocationGranularity)(&mut granularity, &prop, minimum) };
            self.check(code, "cuMemGetAllocationGranularity", || format!("device {dev}"))?;
        }
        Ok(DeviceProps {
            name,
            total_bytes: total as u64,
            granularity: granularity as u64,
            vmm,
            posix_fd: vmm
                && self.attribute(device, A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)? != 0,
            rdma: vmm && self.attribute(device, A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)? != 0,
            max_mappings: usize::MAX,
            compute: (
                self.attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?.unsigned_abs(),
                self.attribute(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?.unsigned_abs(),
            ),
            numa: self.pci_address(device).and_then(|address| numa::node_of_pci(&address)),
        })
    }

    /// Tells the device's default pool to keep its memory, as every serious user of
    /// `cudaMallocAsync` does. A comparison with a pool that returns its memory at each
    /// synchronisation would be unfair.
    pub(super) fn prepare_native(&self, dev: DeviceId, device: &Device) -> Result<()> {
        if device.native_ready.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut pool = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (self.api.cuDeviceGetDefaultMemPool)(&mut pool, device.raw) };
        self.check(code, "cuDeviceGetDefaultMemPool", || format!("device {dev}"))?;
        let mut threshold = u64::MAX;
        let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: this attribute's value is a cuuint64_t.
        let code = unsafe { (self.api.cuMemPoolSetAttribute)(pool, attribute, (&raw mut threshold).cast()) };
        self.check(code, "cuMemPoolSetAttribute", || format!("release threshold, device {dev}"))?;
        device.native_ready.store(true, Ordering::Relaxed);
        Ok(())
    }
}
