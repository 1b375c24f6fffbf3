#![deny(unsafe_code, clippy::unwrap_used, clippy::expect_used)]
//! The background trim: at every `GPUMEM_TRIM_INTERVAL`, free memory that has been unused for as
//! long goes back.
//!
//! One thread serves all pools of a context. While it waits it holds no lock, and only weak
//! references to the pools. It ends with its context; the process's context lasts as long as the
//! process. A forked child has no such thread.

use super::config::Config;
use crate::base::sync::OnceLock;
use crate::base::{later, Status};
use crate::driver::{exit, process};
use crate::pool::Pool;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The thread's name, as `top -H` shows it.
const NAME: &str = "gpumem-trim";

/// A running background trim. Dropping it ends the thread like [`Self::end`].
pub(super) struct Trimmer {
    /// Never sent to: the receiver learns when it is dropped.
    alive: Mutex<Option<Sender<()>>>,
}

impl Trimmer {
    /// Starts the thread.
    pub(super) fn start(pools: &Arc<[OnceLock<Pool>]>, config: &Config) -> std::io::Result<Trimmer> {
        let (alive, ends) = channel();
        let (pools, config) = (Arc::downgrade(pools), config.clone());
        let run = move || run(&pools, &config, &ends);
        exit::spawn(NAME, run)?;
        Ok(Trimmer { alive: Mutex::new(Some(alive)) })
    }

    /// Ends the thread at its next wait, and does not wait for that.
    pub(super) fn end(&self) {
        drop(self.alive.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn run(pools: &Weak<[OnceLock<Pool>]>, config: &Config, ends: &Receiver<()>) {
    while ends.recv_timeout(config.trim_interval) == Err(RecvTimeoutError::Timeout) {
        let (Some(pools), Some(_work)) = (pools.upgrade(), exit::work()) else { return };
        for pool in pools.iter().filter_map(OnceLock::get) {
            match later::hold(|| pool.trim_unused(config.trim_threshold)) {
                Ok(_) => {}
                // The process is ending.
                Err(e) if e.status == Status::ShuttingDown => return,
                Err(e) if config.log >= 1 => {
                    process::say(format_args!("background trim of device {}: {e}", pool.device()));
                }
                Err(_) => {}
            }
        }
    }
}
