//! The driver's calls as values, so that wrappers can count, record and fail them by kind.

macro_rules! calls {
    ($($variant:ident $name:literal,)*) => {
        /// One method of [`Driver`](super::Driver) that reaches a device.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Call {
            $(#[doc = concat!("`Driver::", $name, "`")] $variant,)*
        }

        impl Call {
            /// How many kinds there are.
            pub const COUNT: usize = [$(Call::$variant),*].len();
            /// Every kind, in the order of the trait.
            pub const ALL: [Call; Call::COUNT] = [$(Call::$variant),*];

            /// The method's name.
            pub fn name(self) -> &'static str {
                match self { $(Call::$variant => $name,)* }
            }
        }
    };
}

calls! {
    DeviceProps "device_props",
    CurrentDevice "current_device",
    SetCurrentDevice "set_current_device",
    CanAccess "can_access",
    MemInfo "mem_info",
    DeviceSync "device_sync",
    VaReserve "va_reserve",
    VaFree "va_free",
    PhysCreate "phys_create",
    PhysRelease "phys_release",
    PhysExport "phys_export",
    PhysImport "phys_import",
    Map "map",
    SetAccess "set_access",
    Unmap "unmap",
    StreamDevice "stream_device",
    StreamId "stream_id",
    StreamIsCapturing "stream_is_capturing",
    StreamCreate "stream_create",
    StreamDestroy "stream_destroy",
    StreamSync "stream_sync",
    StreamWait "stream_wait",
    EventCreate "event_create",
    EventDestroy "event_destroy",
    EventRecord "event_record",
    ContextRecord "context_record",
    EventQuery "event_query",
    EventSync "event_sync",
    CaptureBegin "capture_begin",
    CaptureEnd "capture_end",
    CaptureInfo "capture_info",
    GraphRetain "graph_retain",
    GraphLaunch "graph_launch",
    GraphDestroy "graph_destroy",
    GraphNodes "graph_nodes",
    CopyAsync "copy_async",
    SetAsync "set_async",
    HostAlloc "host_alloc",
    HostAllocOn "host_alloc_on",
    HostFree "host_free",
    NativeAlloc "native_alloc",
    NativeFree "native_free",
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
