//! The driver's functions.

use crate::cuda::{Access, Code, Ctx, IpcHandle, Location, MemPool, NodeParams, Ptr, Stream, NOT_INITIALIZED, SUCCESS};
use crate::functions::functions;
use crate::guard::Inside;
use crate::own_dlsym::own_dlsym;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// Which default stream a look-up asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thread {
    /// The function has one variant.
    Any,
    /// The variant for the legacy default stream.
    Legacy,
    /// The variant for the per-thread default stream.
    Own,
}

/// One function that is hooked.
pub struct Hook {
    /// Its name for `cuGetProcAddress`.
    pub base: &'static str,
    /// The CUDA version that introduced this variant.
    pub since: c_int,
    /// The first CUDA version with a newer variant.
    pub until: c_int,
    pub thread: Thread,
    /// The name that the library exports.
    pub export: &'static str,
    /// The driver's function.
    pub real: fn(&Real) -> usize,
}

macro_rules! real {
    (
        hooked { $( $base:literal, $since:literal .. $until:literal, $thread:ident: $name:ident($($arg:ident: $ty:ty),*) $(= $hook:path)?; )* }
        others { $( $other:ident($($oty:ty),*); )* }
    ) => {
        /// The driver's functions that are called from here; `None` where the driver is older.
        #[allow(non_snake_case)]
        pub struct Real {
            $( pub $name: Option<unsafe extern "C" fn($($ty),*) -> Code>, )*
            $( pub $other: Option<unsafe extern "C" fn($($oty),*) -> Code>, )*
        }

        impl Real {
            /// # Safety
            /// `library` is the driver's.
            unsafe fn read(library: *mut c_void) -> Real {
                // SAFETY: the driver exports these names with these types; null is `None`.
                unsafe {
                    Real {
                        $( $name: std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($ty),*) -> Code>>(
                            own_dlsym(library, concat!(stringify!($name), "\0").as_ptr().cast())), )*
                        $( $other: std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($oty),*) -> Code>>(
                            own_dlsym(library, concat!(stringify!($other), "\0").as_ptr().cast())), )*
                    }
                }
            }

            $(
                /// The driver's function; its absence is an error of CUDA's.
                #[allow(non_snake_case, clippy::too_many_arguments)]
                #[inline]
                pub fn $name(&self, $($arg: $ty),*) -> Code {
                    match self.$name {
                        // SAFETY: what the program passed on, or out-parameters of the caller's
                        // own.
                        Some(f) => unsafe { f($($arg),*) },
                        None => NOT_INITIALIZED,
                    }
                }
            )*
        }

        /// The hooked functions.
        pub static HOOKS: &[Hook] = &[
            $( Hook {
                base: $base, since: $since, until: $until, thread: Thread::$thread, export: stringify!($name),
                real: |r| r.$name.map_or(0, |f| f as usize),
            }, )*
        ];
    };
}

functions!(real);

/// Calls one of the `others`; gives its code, or a CUDA error if the driver lacks it.
macro_rules! other {
    ($real:expr, $name:ident($($arg:expr),*)) => {
        match $real.$name {
            // SAFETY: out-parameters are locals of the caller's, handles are the program's.
            Some(f) => unsafe { f($($arg),*) },
            None => $crate::cuda::NOT_INITIALIZED,
        }
    };
}
pub(crate) use other;

static REAL: AtomicPtr<Real> = AtomicPtr::new(std::ptr::null_mut());

impl Real {
    /// The driver, which the program has loaded; `None` when there is none.
    #[inline]
    pub fn get() -> Option<&'static Real> {
        // SAFETY: null, or a table that is never freed.
        match unsafe { REAL.load(Acquire).as_ref() } {
            Some(real) => Some(real),
            None => Real::find(),
        }
    }

    /// Whether a hook has been called, or looked up, while there was a driver.
    pub fn is_found() -> bool {
        !REAL.load(Relaxed).is_null()
    }

    #[cold]
    fn find() -> Option<&'static Real> {
        let _inside = Inside::enter();
        // The program has loaded the driver, or it could not have asked for a function of it.
        // SAFETY: a C string; nothing is loaded that is not loaded already.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        gpumem::driver::cuda::look_up_with(own_dlsym);
        // SAFETY: the driver's library, which stays loaded by the reference just taken.
        let mine = Box::into_raw(Box::new(unsafe { Real::read(library) }));
        match REAL.compare_exchange(std::ptr::null_mut(), mine, AcqRel, Acquire) {
            // SAFETY: never freed.
            Ok(_) => unsafe { mine.as_ref() },
            Err(theirs) => {
                // SAFETY: made above and given to nobody; the other's is never freed.
                unsafe {
                    drop(Box::from_raw(mine));
                    theirs.as_ref()
                }
            }
        }
    }

    /// The calling thread's current context, 0 when it has none.
    #[inline]
    pub fn current(&self) -> Ctx {
        let mut ctx = 0;
        match other!(self, cuCtxGetCurrent(&mut ctx)) {
            SUCCESS => ctx,
            _ => 0,
        }
    }

    /// Whether the stream is being captured; an error counts as yes.
    pub fn is_captured(&self, stream: Stream) -> bool {
        let mut state = 0;
        other!(self, cuStreamIsCapturing(stream, &mut state)) != SUCCESS || state != 0
    }

    /// The device that a context is on.
    pub fn device_of(&self, ctx: Ctx) -> Option<c_int> {
        let mut device = -1;
        if self.current() == ctx {
            return (other!(self, cuCtxGetDevice(&mut device)) == SUCCESS).then_some(device);
        }
        self.within(ctx, || other!(self, cuCtxGetDevice(&mut device)) == SUCCESS)?.then_some(device)
    }

    /// The primary context of a device, if that is active.
    pub fn primary(&self, device: c_int) -> Option<Ctx> {
        let (mut flags, mut active, mut ctx) = (0, 0, 0);
        let known = other!(self, cuDevicePrimaryCtxGetState(device, &mut flags, &mut active));
        if known != SUCCESS || active == 0 || self.cuDevicePrimaryCtxRetain(&mut ctx, device) != SUCCESS {
            return None;
        }
        self.cuDevicePrimaryCtxRelease_v2(device);
        Some(ctx)
    }

    /// Runs something with a context current.
    pub fn within<T>(&self, ctx: Ctx, run: impl FnOnce() -> T) -> Option<T> {
        if other!(self, cuCtxPushCurrent_v2(ctx)) != SUCCESS {
            return None;
        }
        let result = run();
        let mut popped = 0;
        other!(self, cuCtxPopCurrent_v2(&mut popped));
        Some(result)
    }
}
