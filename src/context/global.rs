//! The process's one context.
//!
//! Made by the first call that needs it, never destroyed: at exit the operating system takes
//! everything, and no CUDA call is made from a destructor.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::{backend, Config, Context};
use crate::base::{Error, Result, Status};
use crate::driver::process;
use std::sync::{Mutex, OnceLock, PoisonError};

static GLOBAL: OnceLock<Context> = OnceLock::new();
/// Held while the context is being made, so that one is made only once.
static MAKING: Mutex<()> = Mutex::new(());

impl Context {
    /// The process's context, made from the environment on first use. A failure is reported and
    /// tried again by the next call.
    #[inline]
    pub fn global() -> Result<&'static Context> {
        match GLOBAL.get() {
            Some(c) if !process::forked() => Ok(c),
            Some(_) => Err(forked()),
            None => make(Config::from_env).map(|(c, _)| c),
        }
    }

    /// The process's context if it has been made, in this process.
    #[inline]
    pub fn started() -> Option<&'static Context> {
        GLOBAL.get().filter(|_| !process::forked())
    }

    /// The process's context if it has been made.
    pub fn existing() -> Option<&'static Context> {
        GLOBAL.get()
    }

    /// Makes the process's context from explicit options; `Invalid` when it exists already.
    pub fn init_global(config: Config) -> Result<&'static Context> {
        match make(|| Ok(config))? {
            (context, true) => Ok(context),
            _ => Err(Error::invalid(
                "gpumem has started already; gpumem_init must come before every call that needs a device",
            )),
        }
    }

    /// Makes a given context the process's, for tests of the C ABI over their own driver. `Invalid`
    /// when there is one already.
    pub fn adopt(context: Context) -> Result<&'static Context> {
        let _making = process::making();
        let _lock = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        process::watch_forks();
        GLOBAL.set(context).map_err(|_| Error::invalid("the process has a context already"))?;
        Context::started().ok_or_else(forked)
    }
}

fn make(config: impl FnOnce() -> Result<Config>) -> Result<(&'static Context, bool)> {
    if process::forked() {
        return Err(forked());
    }
    let _making = process::making();
    let _lock = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(context) = GLOBAL.get() {
        return Ok((context, false));
    }
    let config = config()?;
    let driver = backend::open(&config)?;
    process::watch_forks();
    let context = Context::new(driver, config)?;
    Ok((GLOBAL.get_or_init(|| context), true))
}

fn forked() -> Error {
    Error::new(
        Status::Forked,
        "this process was forked after gpumem had started, or while it did, and device memory does not survive a fork; \
         start gpumem in the child only, or use fork and exec",
    )
}
