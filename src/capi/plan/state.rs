//! What stands behind a `gpumem_plan`.

use crate::base::sync::lock;
use crate::base::{Error, Result};
use crate::plan::{critical, ArenaUse, Graph, Interval, Layout, LayoutStatus, Lowered, Placement, Slot, Step};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};

/// One plan. Its calls take turns at `state`; the flags are outside, for those that must not wait.
pub(in crate::capi) struct Plan {
    /// Stops a solve in progress.
    cancel: AtomicBool,
    /// Its handle has been destroyed.
    gone: AtomicBool,
    state: Mutex<State>,
}

/// What a plan holds.
pub(in crate::capi) struct State {
    /// What is to be laid out.
    pub graph: Graph,
    pub answer: Answer,
    /// The last layout there was, for planning again.
    pub last: Option<Arc<Solved>>,
}

/// What solving has given.
pub(in crate::capi) enum Answer {
    /// Nothing was solved yet.
    Never,
    /// The plan was changed after it was solved.
    Stale,
    /// A layout of the plan as it is, or the proof or guess that there is none.
    Solved(Arc<Solved>),
}

/// A solved plan.
pub(in crate::capi) struct Solved {
    pub lowered: Lowered,
    pub layout: Layout,
    /// Operations of the graph.
    pub operations: usize,
    /// Found when it is asked for.
    critical: OnceLock<Critical>,
}

/// Where most is live.
pub(in crate::capi) struct Critical {
    pub step: Step,
    /// The values whose slots are live there, in order.
    pub values: Vec<u32>,
}

impl Plan {
    pub(in crate::capi) fn new(graph: Graph) -> Plan {
        Plan {
            cancel: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            state: Mutex::new(State { graph, answer: Answer::Never, last: None }),
        }
    }

    /// Stops a solve in progress; does not wait for it.
    pub(in crate::capi) fn cancel(&self) {
        self.cancel.store(true, SeqCst);
    }

    /// Its handle is gone: a solve in progress is to end, and none is to start.
    pub(in crate::capi) fn abandon(&self) {
        // In this order: a solve clears `cancel` before it looks at `gone`, so one or the other
        // stops it.
        self.gone.store(true, SeqCst);
        self.cancel.store(true, SeqCst);
    }

    /// Reads or changes the plan in its turn.
    pub(in crate::capi) fn with<T>(&self, f: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        f(&mut lock(&self.state))
    }

    /// Runs a solve that stops when the flag it is given is set.
    pub(in crate::capi) fn solve<T>(&self, solve: impl FnOnce(&mut State, &AtomicBool) -> Result<T>) -> Result<T> {
        let mut state = lock(&self.state);
        self.cancel.store(false, SeqCst);
        self.still_there()?;
        let solved = solve(&mut state, &self.cancel);
        self.still_there()?;
        solved
    }

    fn still_there(&self) -> Result<()> {
        match self.gone.load(SeqCst) {
            true => Err(Error::invalid("the plan was destroyed before it was solved")),
            false => Ok(()),
        }
    }
}

impl State {
    /// The plan solved as it is, with a layout or without.
    pub(in crate::capi) fn solved(&self) -> Result<&Arc<Solved>> {
        match &self.answer {
            Answer::Solved(solved) => Ok(solved),
            Answer::Never => Err(Error::invalid("the plan has not been solved; call gpumem_plan_solve first")),
            Answer::Stale => {
                Err(Error::invalid("the plan was changed after it was solved; call gpumem_plan_solve again"))
            }
        }
    }

    /// The plan solved as it is, with a layout.
    pub(in crate::capi) fn laid_out(&self) -> Result<&Arc<Solved>> {
        let solved = self.solved()?;
        match solved.layout.status {
            LayoutStatus::Optimal | LayoutStatus::Feasible => Ok(solved),
            status => Err(Error::invalid(format!(
                "the plan has no layout: solving it ended with {}; the error of gpumem_plan_solve says what may help",
                status.name()
            ))),
        }
    }
}

impl Solved {
    pub(in crate::capi) fn new(lowered: Lowered, layout: Layout, operations: usize) -> Solved {
        Solved { lowered, layout, operations, critical: OnceLock::new() }
    }

    /// Where most is live.
    pub(in crate::capi) fn critical(&self) -> &Critical {
        self.critical.get_or_init(|| {
            let (step, buffers) = critical(&self.lowered.problem);
            let mut values: Vec<u32> =
                buffers.into_iter().filter_map(|b| self.lowered.value_of(b)).map(|v| v.0).collect();
            values.sort_unstable();
            Critical { step, values }
        })
    }

    /// What an arena needs.
    pub(in crate::capi) fn arena(&self, arena: u32) -> Result<ArenaUse> {
        let arenas = &self.layout.arenas;
        arenas.get(arena as usize).copied().ok_or_else(|| {
            Error::invalid(format!("arena {arena} does not exist; the plan has {}, counted from 0", arenas.len()))
        })
    }

    /// Where a value is.
    pub(in crate::capi) fn slot(&self, id: u32) -> Result<Slot> {
        self.placement(id)?.slot(&self.layout).ok_or_else(|| no_slot(id))
    }

    /// When the slot of a value is live, from first to last.
    pub(in crate::capi) fn live(&self, id: u32) -> Result<Interval> {
        match self.placement(id)? {
            Placement::In { buffer, .. } => match self.lowered.problem.buffers().get(buffer.index()) {
                Some(b) => Ok(Interval::new(b.lower, b.upper)),
                None => Err(Error::internal(format!("value {id} is in buffer {buffer}, which does not exist"))),
            },
            Placement::At(_) => Ok(Interval::new(0, self.lowered.end)),
            Placement::Nowhere => Err(no_slot(id)),
        }
    }

    fn placement(&self, id: u32) -> Result<Placement> {
        let placements = &self.lowered.placements;
        placements.get(id as usize).copied().ok_or_else(|| {
            Error::invalid(format!("value {id} does not exist; there are {}, counted from 0", placements.len()))
        })
    }
}

fn no_slot(id: u32) -> Error {
    Error::invalid(format!("value {id} has no slot: its kind is left out of the plan, or nothing writes or reads it"))
}
