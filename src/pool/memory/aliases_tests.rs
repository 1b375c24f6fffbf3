#![allow(clippy::unwrap_used)]
use super::*;
use crate::base::{DeviceId, StreamHandle};
use crate::driver::host::{HostDriver, HostOptions};
use crate::driver::Watch;

const P: u64 = 2 << 20;

fn extents(aliases: &mut Aliases, n: u64) -> Vec<Extent> {
    (0..n).map(|i| aliases.add_extent(PhysHandle(100 + i), P)).collect()
}

fn lanes() -> (Order, u32, u32) {
    let order = Order::new(HostDriver::new(HostOptions::default()).unwrap(), DeviceId(0), 4, Watch::Ask);
    let lane = || order.add_lane(false, StreamHandle::LEGACY, 1).unwrap_or(0);
    let (a, b) = (lane(), lane());
    (order, a, b)
}

#[track_caller]
fn valid(aliases: &Aliases) {
    assert_eq!(aliases.validate(), Ok(()));
}

/// Moves all extents of a run, two by two, to runs of their own; returns these.
fn move_away(aliases: &mut Aliases, run: RunId, to: u64, tag: Tag) -> Vec<RunId> {
    let all: Vec<Mapped> = aliases.run(run).map(|x| x.1).collect();
    let moved = all.chunks(2).zip(0..).map(|(pair, i)| {
        pair.iter().for_each(|m| aliases.leave(m.place, tag));
        let extents: Vec<Extent> = pair.iter().map(|m| m.extent).collect();
        aliases.add_run(to + i * 10 * P, &extents)
    });
    moved.collect()
}

#[test]
fn a_run_waits_for_every_lane_that_used_it() {
    let (order, a, b) = lanes();
    let mut aliases = Aliases::default();
    let all = extents(&mut aliases, 4);
    let run = aliases.add_run(100 * P, &all);
    for (m, tag) in aliases.run(run).map(|x| x.1).collect::<Vec<_>>().into_iter().zip([
        order.tag(a),
        order.tag(b),
        Tag::SETTLED,
        order.tag(a),
    ]) {
        aliases.leave(m.place, tag);
    }
    valid(&aliases);
    assert_eq!(aliases.waits(&order).collect::<Vec<_>>(), [order.tag(a), order.tag(b)]);
    assert_eq!(aliases.claim_of(all[2], &order).map(|c| c.len()), None, "its neighbours may be in use still");
    let (claims, waits) = aliases.claim_oldest(10, usize::MAX, &order);
    assert_eq!((claims.len(), waits), (0, vec![order.tag(a), order.tag(b)]));
    // Once it is back nothing about it waits; then it leaves again, settled.
    let parts = aliases.look_up(run);
    assert_eq!(parts.len(), 1, "all of it is in stock");
    aliases.take_back(run, parts, Tag::SETTLED);
    assert_eq!(aliases.waits(&order).count(), 0);
    move_away(&mut aliases, run, 200 * P, Tag::SETTLED);
    valid(&aliases);
    assert_eq!(
        aliases.claim_oldest(3, usize::MAX, &order).0.iter().map(|c| c.addr).collect::<Vec<_>>(),
        [100, 101, 102].map(|p| p * P)
    );
    valid(&aliases);
}

#[test]
fn parts_are_found_from_high_to_low_addresses_and_kept() {
    let mut aliases = Aliases::default();
    let all = extents(&mut aliases, 6);
    let run = aliases.add_run(100 * P, &all);
    let pairs = move_away(&mut aliases, run, 200 * P, Tag::SETTLED);
    let there =
        |parts: &[RunPart]| parts.iter().map(|p| p.whereabouts().map(|(a, b)| (a / P, b / P))).collect::<Vec<_>>();
    let expected = [Some((220, 222)), Some((210, 212)), Some((200, 202))];
    let parts = aliases.parts(run).unwrap_or_default();
    assert_eq!(there(&parts), expected);
    assert_eq!(parts.iter().map(|p| (p.first, p.len)).collect::<Vec<_>>(), [(4, 2), (2, 2), (0, 2)]);
    aliases.take_back(run, parts, Tag::SETTLED);
    valid(&aliases);
    assert_eq!((aliases.dormant(), aliases.dormant_bytes()), (6, 6 * P));
    assert!(aliases.parts(run).is_none(), "it is not dormant");
    // Back to the pairs, and away again: the same parts as before, which still hold.
    for pair in &pairs {
        let parts = aliases.parts(*pair).unwrap_or_default();
        aliases.take_back(*pair, parts, Tag::SETTLED);
    }
    valid(&aliases);
    let kept = aliases.take_parts(run);
    assert_eq!(there(&kept), expected);
    aliases.set_parts(run, kept);
    // An extent that goes elsewhere: the parts kept do not show it, but looking up finds it.
    let first = aliases.run(pairs[0]).map(|x| x.1).next();
    let Some(first) = first else { unreachable!("the pair has two") };
    aliases.leave(first.place, Tag::SETTLED);
    aliases.add_run(300 * P, &[first.extent]);
    let parts = aliases.parts(run).unwrap_or_default();
    assert_eq!(there(&parts), expected, "no other extent can be there");
    let parts = aliases.look_up(run);
    assert_eq!(there(&parts), [Some((300, 301)), Some((220, 222)), Some((210, 212)), Some((201, 202))]);
    aliases.set_parts(run, parts);
    valid(&aliases);
}

#[test]
fn a_long_run_comes_back_whole() {
    let mut aliases = Aliases::default();
    let all = extents(&mut aliases, 300);
    let run = aliases.add_run(1000 * P, &all);
    let pairs = move_away(&mut aliases, run, 10_000 * P, Tag::SETTLED);
    assert_eq!((pairs.len(), aliases.dormant()), (150, 300));
    valid(&aliases);
    let parts = aliases.parts(run).unwrap_or_default();
    assert_eq!(parts.len(), 150);
    aliases.take_back(run, parts, Tag::SETTLED);
    valid(&aliases);
    assert!(all.iter().zip(1000..).all(|(&e, p)| aliases.address(e) == Some(p * P)));
}

#[test]
fn an_alias_that_is_gone_leaves_its_run_in_parts() {
    let (order, ..) = lanes();
    let mut aliases = Aliases::default();
    let all = extents(&mut aliases, 3);
    let run = aliases.add_run(100 * P, &all);
    let other = move_away(&mut aliases, run, 200 * P, Tag::SETTLED);
    let claims = aliases.claim_of(all[1], &order).unwrap_or_default();
    assert_eq!(claims.iter().map(|c| (c.addr / P, c.size / P)).collect::<Vec<_>>(), [(101, 1)]);
    assert!(!aliases.is_dormant(run), "one is claimed");
    assert_eq!(aliases.claim_of(all[1], &order).map(|c| c.len()), None, "somebody has it");
    valid(&aliases);
    aliases.unclaim(claims[0]);
    assert!(aliases.is_dormant(run) && aliases.is_whole(run));
    let claims = aliases.claim_of(all[1], &order).unwrap_or_default();
    aliases.gone(claims[0]);
    valid(&aliases);
    assert!(!aliases.is_whole(run) && !aliases.is_dormant(run) && aliases.parts(run).is_none());
    // Runs that have lost an alias go first.
    let claims = aliases.claim_oldest(10, usize::MAX, &order).0;
    assert_eq!(claims.iter().map(|c| c.addr / P).collect::<Vec<_>>(), [100, 102]);
    claims.into_iter().for_each(|c| aliases.gone(c));
    valid(&aliases);
    assert_eq!(aliases.bounds(run), (0, 0, 0), "nothing is left of it");
    all.iter().for_each(|&e| aliases.present_gone(e));
    assert!(other.iter().all(|&r| aliases.bounds(r).2 == 0));
    valid(&aliases);
}

/// Where a run may grow: dormant aliases that the device has passed, and no others.
#[test]
fn passed_aliases_are_found_by_their_addresses() {
    let (order, a, _) = lanes();
    let mut aliases = Aliases::default();
    let all = extents(&mut aliases, 6);
    let (low, high) = (aliases.add_run(100 * P, &all[..4]), aliases.add_run(104 * P, &all[4..]));
    let places = |aliases: &Aliases, run| aliases.run(run).map(|x| x.1.place).collect::<Vec<_>>();
    places(&aliases, low)[1..].iter().for_each(|&place| aliases.leave(place, Tag::SETTLED));
    places(&aliases, high).into_iter().for_each(|place| aliases.leave(place, order.tag(a)));
    let sizes = |aliases: &Aliases, addr: u64| {
        [false, true].map(|in_front| aliases.passed_beside(addr * P, in_front, &order) / P)
    };
    assert_eq!(sizes(&aliases, 100), [0, 0], "present");
    assert_eq!([101, 102, 104].map(|at| sizes(&aliases, at)), [[1, 0], [1, 1], [0, 1]], "in use behind 104");
    assert_eq!(aliases.passed_beside(103 * P + 1, true, &order), 0, "none ends there");
    // Half an alias is claimed whole.
    let claims = aliases.claim_within(102 * P + 1, 106 * P, &order);
    assert_eq!(claims.iter().map(|c| c.addr / P).collect::<Vec<_>>(), [102, 103]);
    assert_eq!(sizes(&aliases, 103), [0, 0], "claimed");
    valid(&aliases);
    aliases.unclaim(claims[0]);
    aliases.gone(claims[1]);
    assert_eq!([sizes(&aliases, 103), sizes(&aliases, 104)], [[0, 1], [0, 0]]);
    valid(&aliases);
}

/// A look at a few runs finds the longest unused of these, and the next one goes on behind them.
#[test]
fn aliases_are_claimed_from_a_few_runs_at_a_time() {
    let (order, ..) = lanes();
    let mut aliases = Aliases::default();
    // Each is the next of all runs but one: where its extents go is one, too.
    for n in 0..9 {
        let pair = extents(&mut aliases, 2);
        let run = aliases.add_run(10 * n * P, &pair);
        move_away(&mut aliases, run, (1000 + 10 * n) * P, Tag::SETTLED);
    }
    let mut claimed =
        |most, reach| -> Vec<u64> { aliases.claim_oldest(most, reach, &order).0.iter().map(|c| c.addr / P).collect() };
    assert_eq!(claimed(2, 4), [0, 1]);
    assert_eq!(claimed(2, 4), [20, 21], "though 10 is older");
    assert_eq!(claimed(9, 4), [40, 41, 50, 51]);
    assert_eq!(claimed(9, 8), [60, 61, 70, 71, 80, 81]);
    assert_eq!(claimed(1, 4), [10], "it begins again");
    assert_eq!(claimed(usize::MAX, usize::MAX), [11, 30, 31]);
    valid(&aliases);
}
