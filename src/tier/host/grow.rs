//! The thread that pins memory ahead of need.
//!
//! One thread for all nodes, started when there is first something to do. It holds nothing while it
//! waits, and ends with the tier, which waits for it.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::node::Node;
use crate::base::sync::lock;
use crate::driver::exit;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

/// The thread's name, as `top -H` shows it.
const NAME: &str = "gpumem-pin";

/// The thread, if it has been started.
pub(super) struct Grower {
    nodes: Vec<Weak<Node>>,
    running: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

impl Grower {
    pub(super) fn new(nodes: &[Arc<Node>]) -> Grower {
        Grower { nodes: nodes.iter().map(Arc::downgrade).collect(), running: Mutex::new(None) }
    }

    /// Tells the thread that a node asks for memory.
    pub(super) fn wake(&self) {
        let mut running = lock(&self.running);
        if running.is_none() {
            let (bell, rings) = channel();
            let nodes = self.nodes.clone();
            *running = exit::spawn(NAME, move || run(&nodes, &rings)).ok().map(|thread| (bell, thread));
        }
        let rung = running.as_ref().is_some_and(|(bell, _)| bell.send(()).is_ok());
        if !rung {
            // Without the thread, memory is pinned when it is needed.
            self.nodes.iter().filter_map(Weak::upgrade).for_each(|node| node.end_growing());
        }
    }
}

fn run(nodes: &[Weak<Node>], rings: &Receiver<()>) {
    while rings.recv().is_ok() {
        // Even without leave the thread goes on: the driver then refuses memory, and so the growing
        // ends, for which a thread may wait.
        let _work = exit::work();
        nodes.iter().filter_map(Weak::upgrade).for_each(|node| node.grow_ahead());
    }
}

impl Drop for Grower {
    fn drop(&mut self) {
        if let Some((bell, thread)) = lock(&self.running).take() {
            drop(bell);
            // It ends once it has pinned what it is pinning now.
            let _ = thread.join();
        }
    }
}
