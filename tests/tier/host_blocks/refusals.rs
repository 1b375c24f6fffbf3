//! Memory that cannot be pinned or unpinned.

use super::*;

#[test]
fn a_refusal_says_what_was_asked_and_leaves_all_as_it_was() {
    let r = rig(&options());
    let refuse = FaultRule::nth_of(Call::HostAllocOn, 0).with_status(Status::OutOfMemory);
    r.fault.set_rule(Some(refuse.lasting()));
    let parts = ["HOST 3", "64.00 KiB more could not be pinned", "0 B pinned", "limit is 64.00 MiB", "ulimit -l is"];
    says(r.take(100), Status::OutOfMemory, &parts);
    says(r.one(BLOCK), Status::OutOfMemory, &parts);
    says(r.tier.prepare(NODE, 1), Status::OutOfMemory, &parts);
    assert_eq!(
        (r.stats().pinned, r.stats().refused, r.usage().used),
        (0, 6, 0),
        "each tried for a chunk, then for less"
    );
    r.check();
    r.fault.set_rule(Some(refuse));
    let memory = r.take(3 * BLOCK).unwrap();
    assert_eq!((r.stats().pinned, lengths(&memory)), (3 * BLOCK, vec![3 * BLOCK]), "less than a chunk was to be had");
    // An error of another kind is not tried again.
    r.fault.set_rule(Some(FaultRule::nth_of(Call::HostAllocOn, 0)));
    says(r.take(2 * BLOCK), Status::Driver, &["HOST 3"]);
    assert_eq!((r.stats().refused, r.stats().pinned), (8, 3 * BLOCK));
    r.fault.set_rule(None);
    drop(memory);
    r.assert_empty();
}

#[test]
fn whichever_pin_is_refused_counters_stay_exact() {
    for n in 0..8 {
        let r = rig(&options());
        r.fault.set_rule(Some(FaultRule::nth_of(Call::HostAllocOn, n).with_status(Status::OutOfMemory).lasting()));
        let mut held = Vec::new();
        let mut refused = 0;
        for i in 0..40 {
            let bytes = [3 * BLOCK, 100, 2 * CHUNK + 1, BLOCK / 2][i % 4];
            let memory = if i % 3 == 0 { r.one(bytes) } else { r.take(bytes) };
            match memory {
                Ok(memory) => held.push(memory),
                Err(e) => {
                    assert_eq!(e.status, Status::OutOfMemory);
                    refused += 1;
                }
            }
        }
        assert!(refused > 0);
        r.check();
        assert_eq!(r.usage().used, held.iter().map(HostMemory::counted).sum::<u64>());
        assert_eq!(r.stats().pins, n.min(r.counted.count(Call::HostAllocOn)));
        r.fault.set_rule(None);
        held.push(r.take(4 * CHUNK).unwrap());
        drop(held);
        r.assert_empty();
    }
}

#[test]
fn growth_that_is_refused_is_left_to_who_needs_it() {
    let r = rig(&options());
    let a = r.take(2 * BLOCK).unwrap();
    r.fault.set_rule(Some(FaultRule::nth_of(Call::HostAllocOn, 0).with_status(Status::OutOfMemory).lasting()));
    let b = r.take(10 * BLOCK).unwrap();
    r.tier.settle();
    assert_eq!((r.stats().refused, r.stats().chunks), (1, 1));
    let c = r.take(4 * BLOCK).unwrap();
    r.tier.settle();
    assert_eq!(r.stats().refused, 1, "not tried again and again");
    drop(c);
    let c = r.take(4 * BLOCK).unwrap();
    r.tier.settle();
    assert_eq!(r.stats().refused, 1, "blocks that came back let no more be pinned");
    says(r.take(BLOCK), Status::OutOfMemory, &["could not be pinned"]);
    r.fault.set_rule(None);
    let d = r.take(BLOCK).unwrap();
    assert_eq!(r.stats().chunks, 2);
    let e = r.take(9 * BLOCK).unwrap();
    r.tier.settle();
    assert_eq!(r.stats().chunks, 3, "once somebody succeeded it goes on");
    drop((a, b, c, d, e));
    r.assert_empty();
}

#[test]
fn who_trims_does_not_get_the_first_chunks_back() {
    let r = rig(&HostOptions { chunks: 4, ..options() });
    r.fault.set_rule(Some(FaultRule::nth_of(Call::HostAllocOn, 1).with_status(Status::OutOfMemory).lasting()));
    drop(r.take(1).unwrap());
    r.tier.settle();
    r.fault.set_rule(None);
    assert_eq!(r.tier.trim(NODE, 0).unwrap(), CHUNK);
    let memory = r.take(1).unwrap();
    r.tier.settle();
    assert_eq!(r.stats().chunks, 1);
    drop(memory);
    r.assert_empty();
}

#[test]
fn a_tier_that_ends_waits_for_what_it_is_pinning() {
    let r = rig(&HostOptions { chunks: 8, ..options() });
    r.fault.slow_down(Some((Call::HostAllocOn, Duration::from_millis(20))));
    drop(r.take(1).unwrap());
    // By then the thread is at work, with more to come.
    while r.stats().pins < 2 {
        thread::yield_now();
    }
    let Rig { counted, tier, .. } = r;
    drop(tier);
    let count = |call| counted.count(call);
    assert_eq!(count(Call::HostFree), count(Call::HostAllocOn));
    assert!(count(Call::HostFree) >= 1);
}

#[test]
fn who_finds_no_memory_may_make_some() {
    let r = rig(&limited(1));
    let spare = Arc::new(Mutex::new(vec![r.take(CHUNK).unwrap()]));
    let give = spare.clone();
    let policy = OutOfMemoryPolicy::Callback(Arc::new(move |shortage: &Shortage| {
        assert_eq!((shortage.space, shortage.bytes), (HOST, 2 * BLOCK));
        give.lock().unwrap().pop().is_some()
    }));
    r.manager.set_out_of_memory_policy(HOST, policy).unwrap();
    let memory = r.take(2 * BLOCK).unwrap();
    assert!(spare.lock().unwrap().is_empty());
    drop(memory);
    r.assert_empty();
}

#[test]
fn a_chunk_that_cannot_be_unpinned_stays() {
    let r = rig(&limited(2));
    r.tier.prepare(NODE, 2 * CHUNK).unwrap();
    r.fault.set_rule(Some(FaultRule::nth_of(Call::HostFree, 0).lasting()));
    says(r.tier.trim(NODE, 0), Status::Driver, &["unpinning 1.00 MiB of HOST 3"]);
    says(r.one(2 * CHUNK), Status::Driver, &["unpinning"]);
    r.check();
    assert_eq!((r.stats().pinned, r.stats().free, r.usage().used), (2 * CHUNK, 2 * CHUNK, 0));
    let memory = r.take(2 * CHUNK).unwrap();
    r.fault.set_rule(None);
    drop(memory);
    r.assert_empty();
}
