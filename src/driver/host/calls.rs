//! The driver boundary's calls, on the host device.

#![deny(unsafe_code)]

use super::capture::{spoilt, Reach};
use super::device::HostDriver;
use super::identities::Identities;
use super::op::{Submission, Work};
use crate::base::{DeviceId, Error, Result, Status, StreamHandle};
use crate::driver::{
    CaptureInfo, CaptureMode, DeviceProps, Driver, EventHandle, GraphHandle, GraphNodes, MemInfo, PhysFlags,
    PhysHandle, Watch,
};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;

impl Driver for HostDriver {
    fn backend(&self) -> &'static str {
        "host"
    }

    fn version(&self) -> String {
        format!("host device {}", env!("CARGO_PKG_VERSION"))
    }

    // ---- devices --------------------------------------------------------------------------------

    fn device_count(&self) -> u32 {
        self.options.devices
    }

    fn device_props(&self, dev: DeviceId) -> Result<DeviceProps> {
        self.check_device(dev)?;
        Ok(DeviceProps {
            name: "gpumem host device".into(),
            total_bytes: self.look().memory.physical.free_total(dev)?.1,
            granularity: self.options.granularity,
            vmm: true,
            posix_fd: true,
            rdma: false,
            // Linux allows a process 65,530 mappings, and the process has others.
            max_mappings: 60_000,
            compute: (0, 0),
            numa: None,
        })
    }

    fn current_device(&self) -> Result<DeviceId> {
        Ok(self.seat(|seat| seat.device))
    }

    fn set_current_device(&self, dev: DeviceId) -> Result<()> {
        self.check_device(dev)?;
        self.seat(|seat| seat.device = dev);
        Ok(())
    }

    fn can_access(&self, dev: DeviceId, owner: DeviceId) -> Result<bool> {
        self.check_device(dev)?;
        self.check_device(owner)?;
        Ok(dev == owner || self.options.peers)
    }

    fn mem_info(&self, dev: DeviceId) -> Result<MemInfo> {
        let (free, total) = self.enter().memory.physical.free_total(dev)?;
        Ok(MemInfo { free, total })
    }

    fn device_sync(&self, dev: DeviceId) -> Result<()> {
        self.check_device(dev)?;
        self.check_may_wait("device_sync")?;
        let mut st = self.enter();
        st.refuse_in_capture("device_sync", Reach::Device(dev))?;
        let mark = Self::everything(&mut st, |l| l.dev == dev);
        self.wait_for(st, &mark).map(drop)
    }

    fn mistakes(&self) -> u64 {
        self.reports_made()
    }

    // ---- virtual memory -------------------------------------------------------------------------

    fn va_reserve(&self, dev: DeviceId, size: u64, align: u64) -> Result<u64> {
        self.check_device(dev)?;
        self.enter().memory.reserve(size, align)
    }

    fn va_free(&self, dev: DeviceId, va: u64, size: u64) -> Result<()> {
        self.check_device(dev)?;
        self.enter().memory.free(va, size)
    }

    fn phys_create(&self, dev: DeviceId, size: u64, flags: PhysFlags) -> Result<PhysHandle> {
        self.check_device(dev)?;
        self.enter().memory.physical.create(dev, size, flags)
    }

    fn phys_release(&self, h: PhysHandle) -> Result<()> {
        let mut st = self.enter();
        if let Some(keys) = st.memory.physical.release(h)? {
            st.shadow.forget(&keys);
        }
        Ok(())
    }

    fn phys_export(&self, h: PhysHandle) -> Result<OwnedFd> {
        self.enter().memory.physical.export(h)
    }

    fn phys_import(&self, dev: DeviceId, fd: &OwnedFd) -> Result<PhysHandle> {
        self.check_device(dev)?;
        self.enter().memory.physical.import(dev, fd)
    }

    fn map(&self, dev: DeviceId, va: u64, size: u64, h: PhysHandle) -> Result<()> {
        self.check_device(dev)?;
        self.enter().memory.map(va, size, h)
    }

    fn set_access(&self, va: u64, size: u64, devs: &[DeviceId]) -> Result<()> {
        self.enter().memory.set_access(va, size, devs, self.options.peers)
    }

    fn unmap(&self, va: u64, size: u64) -> Result<()> {
        let st = self.enter();
        st.memory.check_unmap(va, size)?;
        let mut st = self.wait_unused(st, va, size)?;
        // Another thread may have unmapped it during the wait.
        let r = st.memory.check_unmap(va, size)?;
        let st = &mut *st;
        let users = st.users_of(&r);
        let gone = st.memory.unmap(r.clone())?;
        st.report_in_use(users, &r, None, &st.host.clone(), "unmapping");
        for keys in gone {
            st.shadow.forget(&keys);
        }
        Ok(())
    }

    // ---- streams and order ----------------------------------------------------------------------

    fn stream_device(&self, s: StreamHandle) -> Result<DeviceId> {
        match s.canonical() {
            StreamHandle::LEGACY | StreamHandle::PER_THREAD => self.current_device(),
            s => Ok(self.handles.lookup(s)?.0),
        }
    }

    fn stream_id(&self, dev: DeviceId, s: StreamHandle) -> Result<u64> {
        if self.captures.load(Ordering::Acquire) > 0 && self.stream_is_capturing(dev, s)? {
            return Err(Error::new(Status::Capturing, format!("stream {s} of device {dev} is being captured")));
        }
        self.identity(dev, s)
    }

    fn stream_watch(&self, _dev: DeviceId) -> Watch {
        Watch::Host(self.handles.clone())
    }

    fn stream_is_capturing(&self, dev: DeviceId, s: StreamHandle) -> Result<bool> {
        if self.captures.load(Ordering::Acquire) == 0 {
            return self.identity(dev, s).map(|_| false);
        }
        let mut st = self.look();
        let lane = self.lane(&mut st, dev, s)?;
        st.lanes.is_captured(lane)
    }

    fn stream_create(&self, dev: DeviceId) -> Result<StreamHandle> {
        self.new_stream(dev, false)
    }

    fn stream_destroy(&self, dev: DeviceId, s: StreamHandle) -> Result<()> {
        let mut st = self.enter();
        let lane = self.lane(&mut st, dev, s)?;
        let Some(slot) = Identities::slot(s) else {
            return Err(Error::invalid(format!("the {s} default stream cannot be destroyed")));
        };
        st.lanes.refuse_captured(lane, || format!("stream {s} is being captured; end the capture first"))?;
        self.handles.clear(slot);
        st.lanes.close(slot);
        Ok(())
    }

    fn stream_sync(&self, dev: DeviceId, s: StreamHandle) -> Result<()> {
        self.check_may_wait("stream_sync")?;
        let mut st = self.enter();
        let lane = self.lane(&mut st, dev, s)?;
        st.refuse_in_capture("stream_sync", Reach::Lane(lane))?;
        let mark = if st.lanes.legacy.contains(&lane) {
            // Waiting for the legacy stream means waiting for every blocking stream, itself one.
            Self::everything(&mut st, |l| l.blocking && l.dev == dev)
        } else {
            st.lanes.get(lane)?.mark(lane)
        };
        self.wait_for(st, &mark).map(drop)
    }

    fn stream_wait(&self, dev: DeviceId, s: StreamHandle, e: EventHandle) -> Result<()> {
        let mut st = self.enter();
        let lane = self.lane(&mut st, dev, s)?;
        let mark = st.events.mark(e)?;
        if st.lanes.is_captured(lane)? {
            st.invalidate_capture(lane);
            return Err(Error::new(
                Status::Capturing,
                format!("stream {s} is being captured and cannot wait for work outside the capture; it is now invalid"),
            ));
        }
        let Some(mark) = mark else { return Ok(()) };
        st.order_after(lane, &mark)?;
        if mark.points.iter().all(|(l, _)| *l == lane) {
            return Ok(());
        }
        let deps = mark.points.clone();
        st.submit(lane, Submission { deps, ..Submission::new("wait for an event", Work::Mark) })?;
        drop(self.settle(st));
        Ok(())
    }

    fn event_create(&self, dev: DeviceId) -> Result<EventHandle> {
        self.check_device(dev)?;
        Ok(self.enter().events.create(dev))
    }

    fn event_destroy(&self, dev: DeviceId, e: EventHandle) -> Result<()> {
        let mut st = self.enter();
        st.events.get_mut(dev, e)?;
        st.events.destroy(e)
    }

    fn event_record(&self, dev: DeviceId, e: EventHandle, s: StreamHandle) -> Result<()> {
        let mut st = self.enter();
        let lane = self.lane(&mut st, dev, s)?;
        st.events.get_mut(dev, e)?;
        st.lanes.refuse_captured(lane, || {
            format!("stream {s} is being captured: the event would become a node of the graph and never complete")
        })?;
        st.submit(lane, Submission::new("record an event", Work::Mark))?;
        let mark = st.lanes.get(lane)?.mark(lane);
        st.events.get_mut(dev, e)?.mark = Some(Arc::new(mark));
        drop(self.settle(st));
        Ok(())
    }

    fn context_record(&self, dev: DeviceId, e: EventHandle) -> Result<()> {
        let mut st = self.enter();
        st.events.get_mut(dev, e)?;
        st.refuse_in_capture("context_record", Reach::Device(dev))?;
        let mark = Self::everything(&mut st, |l| l.dev == dev);
        st.events.get_mut(dev, e)?.mark = Some(Arc::new(mark));
        Ok(())
    }

    fn event_query(&self, dev: DeviceId, e: EventHandle) -> Result<bool> {
        let mut st = self.enter();
        let Some(mark) = st.events.get_mut(dev, e)?.mark.clone() else { return Ok(true) };
        let done = mark.points.iter().all(|(lane, seq)| st.lanes.done(*lane, *seq));
        if done {
            st.observe(&mark);
        }
        Ok(done)
    }

    fn event_sync(&self, dev: DeviceId, e: EventHandle) -> Result<()> {
        self.check_may_wait("event_sync")?;
        let mut st = self.enter();
        let Some(mark) = st.events.get_mut(dev, e)?.mark.clone() else { return Ok(()) };
        self.wait_for(st, &mark).map(drop)
    }

    // ---- captures and graphs --------------------------------------------------------------------

    fn capture_begin(&self, dev: DeviceId, s: StreamHandle, mode: CaptureMode) -> Result<()> {
        self.start_capture(dev, s, mode)
    }

    fn capture_end(&self, dev: DeviceId, s: StreamHandle) -> Result<GraphHandle> {
        self.finish_capture(dev, s)?.ok_or_else(|| spoilt(s))
    }

    fn capture_info(&self, dev: DeviceId, s: StreamHandle) -> Result<Option<CaptureInfo>> {
        self.info_of_capture(dev, s)
    }

    fn graph_retain(&self, dev: DeviceId, graph: u64, token: u64) -> Result<()> {
        self.tie_token(dev, graph, token)
    }

    fn graphs_gone(&self) -> Vec<u64> {
        self.gone.take()
    }

    fn graph_launch(&self, dev: DeviceId, g: GraphHandle, s: StreamHandle) -> Result<()> {
        self.launch_graph(dev, g, s)
    }

    fn graph_destroy(&self, dev: DeviceId, g: GraphHandle) -> Result<()> {
        self.destroy_graph(dev, g)
    }

    fn graph_nodes(&self, g: GraphHandle) -> Result<GraphNodes> {
        self.count_nodes(g)
    }

    // ---- data -----------------------------------------------------------------------------------

    fn copy_async(&self, dev: DeviceId, dst: u64, src: u64, size: u64, s: StreamHandle) -> Result<()> {
        self.copy(dev, dst, src, size, s)
    }

    fn set_async(&self, dev: DeviceId, dst: u64, byte: u8, size: u64, s: StreamHandle) -> Result<()> {
        self.fill(dev, dst, byte, size, s)
    }

    fn host_alloc(&self, dev: DeviceId, size: u64) -> Result<u64> {
        self.pinned_alloc(dev, size)
    }

    fn host_alloc_on(&self, dev: DeviceId, size: u64, _numa: Option<u32>) -> Result<u64> {
        self.pinned_alloc(dev, size)
    }

    fn host_free(&self, dev: DeviceId, ptr: u64) -> Result<()> {
        self.pinned_free(dev, ptr)
    }

    fn native_alloc(&self, dev: DeviceId, size: u64, s: StreamHandle) -> Result<u64> {
        self.block_alloc(dev, size, s)
    }

    fn native_free(&self, dev: DeviceId, ptr: u64, s: StreamHandle) -> Result<()> {
        self.block_free(dev, ptr, s)
    }
}
