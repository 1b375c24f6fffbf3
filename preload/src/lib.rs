//! `libgpumem_preload.so`: a CUDA program started with it allocates from gpumem without knowing.
//!
//! | file | holds |
//! |---|---|
//! | `elf`, `own_dlsym` | the C library's own `dlsym`, found without asking it |
//! | `look_up` | the `dlsym` and `dlvsym` of this process |
//! | `cuda`, `functions`, `real` | CUDA's types; the list of functions and hooks; the driver's functions |
//! | `hooks` | the hooks by name, and `cuGetProcAddress`: the driver's answer, with hooks in place of what is hooked |
//! | `guard` | what every hook runs in |
//! | `served` | a device that is served: pool, stream, quarantine |
//! | `alloc`, `ordered`, `mempool` | allocating and freeing; in stream order; the default pool |
//! | `quarantine` | memory that waits until the device has passed its free |
//! | `captures` | which streams are being captured |
//! | `facts` | what pointers are, how much memory there is |
//! | `ipc`, `name`, `porter` | memory handles for other processes, what they name, handing the memory over |
//! | `contexts` | contexts that end, peers |
//! | `graphs` | memset nodes that name no context |
//! | `pressure` | other calls that fail for lack of memory that gpumem could give back |
//! | `settings`, `counters`, `summary` | environment, what is counted, what is said at the end |
//! | `observers` | what shows all devices at once: page of counters, last snapshot |
//!
//! `docs/spec/preload.md` says what is hooked and what it means. Rules:
//! - The driver is asked first. A function is replaced only where the driver has answered with it.
//! - Unusual calls (a null pointer, no size, no context) go to the driver, which has its own errors
//!   for them. So does memory that is not gpumem's, and everything once gpumem cannot work.
//! - Nothing runs when the library is loaded; the first call of `dlsym` looks for the C library's.

#![cfg(target_os = "linux")]

mod alloc;
mod captures;
mod contexts;
mod counters;
mod cuda;
mod elf;
mod facts;
mod functions;
mod graphs;
mod guard;
mod hooks;
mod ipc;
mod look_up;
mod mempool;
mod name;
mod observers;
mod ordered;
mod own_dlsym;
mod porter;
mod pressure;
mod quarantine;
mod real;
mod served;
mod settings;
mod summary;
