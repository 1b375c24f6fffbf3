//! Which spaces may answer a request.

#![deny(unsafe_code, clippy::unwrap_used)]

use super::space::{Space, SpaceId, Tier};
use crate::base::{Error, Result};
use std::sync::Arc;

/// Which spaces will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// This one.
    Space(SpaceId),
    /// Any of the tier: the one with the most room.
    Tier(Tier),
    /// Any of the first tier that has room, else of the next, and so on.
    Tiers(Vec<Tier>),
    /// A space that data of `from` can be moved down to: of a lower tier, the nearest first, or
    /// just of the tier `to`.
    DowngradeFrom {
        /// Where the data is.
        from: SpaceId,
        /// The tier it is to go to.
        to: Option<Tier>,
    },
    /// A space that data of `from` can be moved up to: of a higher tier, the nearest first, or just
    /// of the tier `to`.
    UpgradeFrom {
        /// Where the data is.
        from: SpaceId,
        /// The tier it is to go to.
        to: Option<Tier>,
    },
}

/// The spaces that may answer a request, by index, in ranks. Those of one rank are equally good.
pub(in crate::tier) type Candidates = Vec<Vec<usize>>;

/// The spaces there are. With `disk`, also how to add one of disks.
fn there_are(spaces: &[Arc<Space>], disk: bool) -> String {
    let all = match spaces.is_empty() {
        true => return "no space at all; add one first".to_string(),
        false => spaces.iter().map(|s| s.id.to_string()).collect::<Vec<_>>().join(", "),
    };
    match disk {
        true => format!("{all}; GPUMEM_DISK and gpumem_space_disk_add add disks"),
        false => all,
    }
}

/// The space with this name.
pub(super) fn find(spaces: &[Arc<Space>], id: SpaceId) -> Result<&Arc<Space>> {
    spaces.iter().find(|s| s.id == id).ok_or_else(|| {
        let there_are = there_are(spaces, id.tier == Tier::Disk);
        Error::invalid(format!("there is no space {id}; there are {there_are}"))
    })
}

impl Strategy {
    /// The spaces that will do: at least one.
    pub(in crate::tier) fn candidates(&self, spaces: &[Arc<Space>]) -> Result<Candidates> {
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
            true => {
                let there_are = there_are(spaces, self.names_disk());
                Err(Error::invalid(format!("{} does not exist; there are {there_are}", self.text())))
            }
        }
    }

    fn names_disk(&self) -> bool {
        match self {
            Strategy::Space(id) => id.tier == Tier::Disk,
            Strategy::Tier(tier) => *tier == Tier::Disk,
            Strategy::Tiers(tiers) => tiers.contains(&Tier::Disk),
            Strategy::DowngradeFrom { to, .. } | Strategy::UpgradeFrom { to, .. } => *to == Some(Tier::Disk),
        }
    }

    /// What was looked for, in words.
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
