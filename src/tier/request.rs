//! What can be asked of a manager, and which spaces may answer.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::hub::Cancel;
use super::policy::{LimitPolicy, OutOfMemoryPolicy};
use super::space::{Space, SpaceId, Tier};
use crate::base::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// How many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many, not less.
    Exact(u64),
    /// As many as there are, up to `most`; less than `least` will not do. What it became is the reservation's size.
    UpTo {
        /// Not less; not 0.
        least: u64,
        /// Not more.
        most: u64,
    },
}

impl Amount {
    /// The least and the most bytes.
    pub(super) fn bounds(self) -> (u64, u64) {
        match self {
            Amount::Exact(bytes) => (bytes, bytes),
            Amount::UpTo { least, most } => (least, most),
        }
    }
}

/// How long to wait for room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: all or nothing at once.
    #[default]
    No,
    /// At most so long.
    For(Duration),
    /// Until there is room, or the wait is cancelled, or the manager shut down.
    Forever,
}

/// Which spaces will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// This one.
    Space(SpaceId),
    /// Any of the tier: the one with the most room.
    Tier(Tier),
    /// Any of the first tier that has room, else of the next, and so on.
    Tiers(Vec<Tier>),
    /// One that data of `from` can be moved down to: a lower tier, the nearest first, or just the tier `to`.
    DowngradeFrom {
        /// Where the data is.
        from: SpaceId,
        /// The tier that it is to go to.
        to: Option<Tier>,
    },
    /// One that data of `from` can be moved up to: a higher tier, the nearest first, or just the tier `to`.
    UpgradeFrom {
        /// Where the data is.
        from: SpaceId,
        /// The tier that it is to go to.
        to: Option<Tier>,
    },
}

/// A request for a reservation.
#[derive(Clone, Debug)]
pub struct Request {
    /// How many bytes.
    pub amount: Amount,
    /// Where.
    pub strategy: Strategy,
    /// How long to wait for them.
    pub wait: Wait,
    /// Ends the wait when triggered.
    pub cancel: Option<Cancel>,
    /// What an allocation does that does not fit the reservation.
    pub policy: LimitPolicy,
    /// What an allocation does for which there is no memory; `None`: as the space does.
    pub out_of_memory: Option<OutOfMemoryPolicy>,
}

impl Request {
    /// This many bytes of a space, at once or not at all.
    pub fn exact(space: SpaceId, bytes: u64) -> Request {
        Request::new(Strategy::Space(space), Amount::Exact(bytes))
    }

    /// Without waiting.
    pub fn new(strategy: Strategy, amount: Amount) -> Request {
        Request { amount, strategy, wait: Wait::No, cancel: None, policy: LimitPolicy::default(), out_of_memory: None }
    }

    /// The same, waiting.
    pub fn wait(mut self, wait: Wait) -> Request {
        self.wait = wait;
        self
    }

    /// The same, with a limit policy.
    pub fn policy(mut self, policy: LimitPolicy) -> Request {
        self.policy = policy;
        self
    }

    /// The same, to be cancelled by this token.
    pub fn cancel(mut self, cancel: &Cancel) -> Request {
        self.cancel = Some(cancel.clone());
        self
    }
}

/// The spaces that may answer a request, by index, in ranks: those of a rank are as good as each other.
pub(super) type Candidates = Vec<Vec<usize>>;

fn there_are(spaces: &[Arc<Space>]) -> String {
    match spaces.is_empty() {
        true => "no space at all; add one first".to_string(),
        false => spaces.iter().map(|s| s.id.to_string()).collect::<Vec<_>>().join(", "),
    }
}

/// The space with this name.
pub(super) fn find(spaces: &[Arc<Space>], id: SpaceId) -> Result<&Arc<Space>> {
    spaces
        .iter()
        .find(|s| s.id == id)
        .ok_or_else(|| Error::invalid(format!("there is no space {id}; there are {}", there_are(spaces))))
}

impl Strategy {
    /// The spaces that will do: at least one.
    pub(super) fn candidates(&self, spaces: &[Arc<Space>]) -> Result<Candidates> {
        let of = |tier: Tier| spaces.iter().filter(|s| s.id.tier == tier).map(|s| s.index).collect::<Vec<_>>();
        let mut ranks = match self {
            Strategy::Space(id) => vec![vec![find(spaces, *id)?.index]],
            Strategy::Tier(tier) => vec![of(*tier)],
            Strategy::Tiers(tiers) => {
                let mut once: Vec<Tier> = Vec::new();
                for tier in tiers {
                    if !once.contains(tier) {
                        once.push(*tier);
                    }
                }
                once.into_iter().map(of).collect()
            }
            Strategy::DowngradeFrom { from, to } => {
                let tiers = [Tier::Host, Tier::Disk].into_iter().filter(|t| *t > from.tier);
                near(find(spaces, *from)?, tiers.filter(|t| to.is_none_or(|to| to == *t)), spaces)
            }
            Strategy::UpgradeFrom { from, to } => {
                let tiers = [Tier::Host, Tier::Gpu].into_iter().filter(|t| *t < from.tier);
                near(find(spaces, *from)?, tiers.filter(|t| to.is_none_or(|to| to == *t)), spaces)
            }
        };
        ranks.retain(|rank| !rank.is_empty());
        match ranks.is_empty() {
            false => Ok(ranks),
            true => Err(Error::invalid(format!("{} is not there; there are {}", self.text(), there_are(spaces)))),
        }
    }

    /// What was looked for.
    fn text(&self) -> String {
        let to = |to: &Option<Tier>, way: &str| to.map_or(format!("a {way} tier"), |t| format!("the {way} tier {t}"));
        match self {
            Strategy::Space(id) => format!("the space {id}"),
            Strategy::Tier(tier) => format!("a space of tier {tier}"),
            Strategy::Tiers(tiers) if tiers.is_empty() => "a space of an empty list of tiers".to_string(),
            Strategy::Tiers(tiers) => {
                format!("a space of the tiers {}", tiers.iter().map(Tier::to_string).collect::<Vec<_>>().join(", "))
            }
            Strategy::DowngradeFrom { from, to: t } => format!("a space of {} to move {from} down to", to(t, "lower")),
            Strategy::UpgradeFrom { from, to: t } => format!("a space of {} to move {from} up to", to(t, "higher")),
        }
    }
}

/// The spaces of the tiers, in that order, those of the same NUMA node as `from` first within each.
fn near(from: &Space, tiers: impl Iterator<Item = Tier>, spaces: &[Arc<Space>]) -> Candidates {
    let mut ranks = Vec::new();
    for tier in tiers {
        let (close, far): (Vec<_>, Vec<_>) =
            spaces.iter().filter(|s| s.id.tier == tier).partition(|s| from.numa.is_some() && s.numa == from.numa);
        ranks.push(close.into_iter().map(|s| s.index).collect());
        ranks.push(far.into_iter().map(|s| s.index).collect());
    }
    ranks
}
