//! Callbacks of C, called as an allocation calls them: what they are told, what their answers do,
//! and when what they hold is given back.
//!
//! Allocations are stood in for by receipts (`Manager::draw`, `Manager::allocate_with`), which is
//! what a pool's have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use gpumem::base::{Error, Result, Status};
use gpumem::capi::gpumem_reservation;
use gpumem::capi::tiers::policy::*;
use gpumem::capi::tiers::reserve::*;
use gpumem::capi::tiers::space::*;
use gpumem::context::config::Backend;
use gpumem::context::{Config, Context};
use gpumem::tier::{DrawFrom, Drawn, Manager, Space, SpaceId, Tier};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{mpsc, Arc, Mutex, MutexGuard, OnceLock, PoisonError};

const MIB: u64 = 1 << 20;
const OK: i32 = 0;

/// The one context of this process, and the right to its device's space, of which 100 MiB may be
/// used.
fn start() -> (MutexGuard<'static, ()>, &'static Manager, Arc<Space>) {
    static STARTED: OnceLock<()> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    STARTED.get_or_init(|| {
        Context::init_global(Config { backend: Backend::Host, ..Config::default() }).unwrap();
    });
    let manager = Context::global().unwrap().tiers().unwrap().manager();
    let id = SpaceId::new(Tier::Gpu, 0);
    manager.set_limit(id, Some(100 * MIB)).unwrap();
    (turn, manager, manager.space(id).unwrap())
}

/// Nothing is left promised or used.
#[track_caller]
fn nothing_left(manager: &Manager, space: &Space) {
    manager.validate().unwrap();
    let u = manager.usage(space.id()).unwrap();
    assert_eq!((u.promised, u.used, u.unreserved, u.available), (0, 0, 0, 100 * MIB));
}

/// What a callback was told, what it is to answer, and how often it was given back.
struct Script {
    overdraws: Mutex<Vec<gpumem_overdraw>>,
    shortages: Mutex<Vec<gpumem_shortage>>,
    answers: Mutex<Vec<i64>>,
    /// Given back by the next callback.
    holds: Mutex<Vec<Drawn>>,
    freed: AtomicU64,
}

impl Script {
    /// Answers are taken from the front; after the last the allocation fails.
    fn new(answers: &[i64]) -> Script {
        Script {
            overdraws: Mutex::default(),
            shortages: Mutex::default(),
            answers: Mutex::new(answers.to_vec()),
            holds: Mutex::default(),
            freed: AtomicU64::new(0),
        }
    }

    fn user(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    fn answer(&self) -> i64 {
        self.holds.lock().unwrap().clear();
        let mut answers = self.answers.lock().unwrap();
        match answers.is_empty() {
            true => 0,
            false => answers.remove(0),
        }
    }
}

unsafe extern "C" fn on_overdraw(what: *const gpumem_overdraw, user: *mut c_void) -> i64 {
    // SAFETY: every test passes its script, which outlives the reservation.
    let (script, what) = unsafe { (&*user.cast::<Script>(), &*what) };
    assert_eq!(what.size as usize, size_of::<gpumem_overdraw>());
    script.overdraws.lock().unwrap().push(*what);
    script.answer()
}

unsafe extern "C" fn on_out_of_memory(what: *const gpumem_shortage, user: *mut c_void) -> i32 {
    // SAFETY: as above.
    let (script, what) = unsafe { (&*user.cast::<Script>(), &*what) };
    assert_eq!(what.size as usize, size_of::<gpumem_shortage>());
    script.shortages.lock().unwrap().push(*what);
    script.answer() as i32
}

unsafe extern "C" fn free_script(user: *mut c_void) {
    // SAFETY: as above.
    unsafe { &*user.cast::<Script>() }.freed.fetch_add(1, SeqCst);
}

fn policy(script: &Script) -> gpumem_reserve_policy {
    gpumem_reserve_policy {
        size: size_of::<gpumem_reserve_policy>() as u32,
        kind: GPUMEM_POLICY_CALLBACK,
        factor: 0.0,
        cap: 0,
        flags: 0,
        reserved: 0,
        callback: Some(on_overdraw),
        user: script.user(),
        free_user: Some(free_script),
    }
}

/// A reservation of 10 MiB; a script is for overdraws, the other for lack of memory.
fn reserve(overdraw: Option<&gpumem_reserve_policy>, shortage: Option<&Script>) -> gpumem_reservation {
    let options = gpumem_reserve_options {
        size: size_of::<gpumem_reserve_options>() as u32,
        strategy: 0,
        bytes: 10 * MIB,
        least_bytes: 0,
        space: gpumem_space::default(),
        tiers: [0; 4],
        timeout_ms: 0,
        cancel: std::ptr::null_mut(),
        policy: overdraw.map_or(std::ptr::null(), std::ptr::from_ref),
        out_of_memory: shortage.map(|_| on_out_of_memory as _),
        user: shortage.map_or(std::ptr::null_mut(), Script::user),
        free_user: shortage.map(|_| free_script as _),
    };
    let mut r = std::ptr::null_mut();
    // SAFETY: whole options, and a place for the handle.
    assert_eq!(unsafe { gpumem_reserve(&options, &mut r) }, OK);
    assert_eq!(gpumem_reservation_attach_thread(r), OK);
    r
}

fn info(r: gpumem_reservation) -> gpumem_reservation_info {
    let mut info = gpumem_reservation_info { size: size_of::<gpumem_reservation_info>() as u32, ..Default::default() };
    // SAFETY: a structure with its size.
    assert_eq!(unsafe { gpumem_reservation_info_get(r, &mut info) }, OK);
    info
}

fn release(r: gpumem_reservation) {
    // SAFETY: null is allowed.
    assert_eq!(unsafe { gpumem_reservation_release(r, std::ptr::null_mut()) }, OK);
}

#[track_caller]
fn is_out_of_memory<T: std::fmt::Debug>(result: Result<T>) {
    assert_eq!(result.unwrap_err().status, Status::OutOfMemory);
}

#[test]
fn an_overdraw_callback_is_told_all_and_each_of_its_answers_is_followed() {
    let (_turn, manager, space) = start();
    let script = Script::new(&[GPUMEM_OVERDRAW_FAIL, -7, GPUMEM_OVERDRAW_IGNORE, MIB as i64, 95 * MIB as i64]);
    let r = reserve(Some(&policy(&script)), None);
    let held = manager.draw(&space, None, 8 * MIB, 77).unwrap();
    assert!(script.overdraws.lock().unwrap().is_empty());
    // It fails by GPUMEM_OVERDRAW_FAIL, and by a number that means nothing.
    is_out_of_memory(manager.draw(&space, None, 3 * MIB, 77));
    is_out_of_memory(manager.draw(&space, None, 3 * MIB, 77));
    let told = script.overdraws.lock().unwrap()[0];
    assert_eq!((told.space.tier, told.space.id, told.number), (GPUMEM_TIER_GPU, 0, info(r).number));
    assert_eq!((told.promised, told.drawn, told.bytes), (10 * MIB, 8 * MIB, 3 * MIB));
    assert_eq!((told.stream as usize, told.attempt), (77, 1));

    // 1 MiB comes from outside.
    let ignored = manager.draw(&space, None, 3 * MIB, 77).unwrap();
    assert_eq!((ignored.inside(), ignored.bytes(), info(r).promised), (2 * MIB, 3 * MIB, 10 * MIB));
    drop(ignored);
    // The reservation grows, and then more than there is.
    let grown = manager.draw(&space, None, 3 * MIB, 77).unwrap();
    assert_eq!((grown.inside(), info(r).promised, info(r).drawn), (3 * MIB, 11 * MIB, 11 * MIB));
    is_out_of_memory(manager.draw(&space, None, MIB, 77));
    assert_eq!((info(r).promised, script.overdraws.lock().unwrap().len()), (11 * MIB, 5));
    drop((held, grown));
    release(r);
    assert_eq!(script.freed.load(SeqCst), 1);
    nothing_left(manager, &space);
}

#[test]
fn an_overdraw_callback_may_free_and_have_the_allocation_tried_again() {
    let (_turn, manager, space) = start();
    let script = Script::new(&[GPUMEM_OVERDRAW_RETRY, GPUMEM_OVERDRAW_RETRY]);
    let r = reserve(Some(&policy(&script)), None);
    let held = manager.draw(&space, None, 4 * MIB, 0).unwrap();
    *script.holds.lock().unwrap() = vec![manager.draw(&space, None, 6 * MIB, 0).unwrap()];
    let second = manager.draw(&space, None, 6 * MIB, 0).unwrap();
    is_out_of_memory(manager.draw(&space, None, 1, 0));
    let attempts: Vec<_> = script.overdraws.lock().unwrap().iter().map(|o| (o.attempt, o.drawn)).collect();
    assert_eq!(attempts, [(1, 10 * MIB), (1, 10 * MIB), (2, 10 * MIB)]);
    drop((held, second));
    release(r);
    nothing_left(manager, &space);
}

#[test]
fn policies_without_a_callback_do_what_they_say() {
    let (_turn, manager, space) = start();
    let script = Script::new(&[]);
    let set = |r, policy: &gpumem_reserve_policy| {
        // SAFETY: a whole policy.
        assert_eq!(unsafe { gpumem_reservation_policy_set(r, policy) }, OK);
    };
    let plain =
        gpumem_reserve_policy { callback: None, user: std::ptr::null_mut(), free_user: None, ..policy(&script) };
    let r = reserve(None, None);
    is_out_of_memory(manager.draw(&space, None, 11 * MIB, 0));
    set(r, &gpumem_reserve_policy { kind: GPUMEM_POLICY_IGNORE, ..plain });
    assert_eq!(manager.draw(&space, None, 11 * MIB, 0).unwrap().inside(), 10 * MIB);
    set(r, &gpumem_reserve_policy { kind: GPUMEM_POLICY_INCREASE, ..plain });
    let grown = manager.draw(&space, None, 11 * MIB, 0).unwrap();
    assert_eq!(info(r).promised, 25 * MIB / 2); // 1.25 times
    set(r, &gpumem_reserve_policy { kind: GPUMEM_POLICY_INCREASE, factor: 2.0, cap: 20 * MIB, ..plain });
    let more = manager.draw(&space, None, 2 * MIB, 0).unwrap();
    assert_eq!(info(r).promised, 20 * MIB); // twice, but for the cap
    is_out_of_memory(manager.draw(&space, None, 8 * MIB, 0));
    let beyond = gpumem_reserve_policy { kind: GPUMEM_POLICY_INCREASE, flags: GPUMEM_POLICY_BEYOND_LIMIT, ..plain };
    set(r, &gpumem_reserve_policy { flags: 0, ..beyond });
    is_out_of_memory(manager.draw(&space, None, 100 * MIB, 0));
    set(r, &beyond);
    let much = manager.draw(&space, None, 100 * MIB, 0).unwrap();
    assert_eq!((info(r).promised, manager.usage(space.id()).unwrap().beyond), (113 * MIB, 13 * MIB));
    drop((grown, more, much));
    assert_eq!((info(r).used, info(r).peak), (0, 113 * MIB));
    release(r);
    nothing_left(manager, &space);
}

/// The reservation's callback is asked, where it has one, else the space's; either may make room
/// and ask for another try.
#[test]
fn an_out_of_memory_callback_is_told_all_and_may_ask_for_another_try() {
    let (_turn, manager, space) = start();
    let (own, of_space) = (Script::new(&[1, 1, 0]), Script::new(&[1, 0]));
    // SAFETY: the space exists, and the script outlives the setting.
    let set = |callback, user: *mut c_void, free| unsafe {
        gpumem_space_out_of_memory_set(gpumem_space { tier: GPUMEM_TIER_GPU, id: 0 }, callback, user, free)
    };
    assert_eq!(set(Some(on_out_of_memory), of_space.user(), Some(free_script)), OK);
    let r = reserve(None, Some(&own));
    let mut left = 2;
    let made = manager.allocate_with(&space, None, 3 * MIB, 55, |drawn, _| match left {
        0 => Ok(("memory", drawn)),
        _ => {
            left -= 1;
            Err(Error::new(Status::OutOfMemory, "none"))
        }
    });
    let (made, receipt) = made.unwrap();
    assert_eq!((made, receipt.bytes(), left), ("memory", 3 * MIB, 0));
    drop(receipt);
    let told: Vec<_> =
        own.shortages.lock().unwrap().iter().map(|s| (s.space.tier, s.space.id, s.bytes, s.attempt)).collect();
    assert_eq!(told, [(GPUMEM_TIER_GPU, 0, 3 * MIB, 1), (GPUMEM_TIER_GPU, 0, 3 * MIB, 2)]);
    assert_eq!(own.shortages.lock().unwrap()[0].stream as usize, 55);
    // It gives up.
    is_out_of_memory(
        manager.allocate_with(&space, None, MIB, 0, |_, _| Err::<(), _>(Error::new(Status::OutOfMemory, "none"))),
    );
    assert_eq!((own.shortages.lock().unwrap().len(), of_space.shortages.lock().unwrap().len()), (3, 0));

    // What is counted outside of it is none of its business, though it is attached.
    let none = |_, _: Option<&_>| Err::<(), _>(Error::new(Status::OutOfMemory, "none"));
    is_out_of_memory(manager.allocate_with(&space, DrawFrom::Outside, MIB, 0, none));
    assert_eq!((own.shortages.lock().unwrap().len(), of_space.shortages.lock().unwrap().len()), (3, 2));

    // Without one of its own, the space's is asked.
    // SAFETY: null is allowed.
    let taken = unsafe { gpumem_reservation_out_of_memory_set(r, None, std::ptr::null_mut(), None) };
    assert_eq!((taken, own.freed.load(SeqCst)), (OK, 1));
    is_out_of_memory(
        manager.allocate_with(&space, None, MIB, 0, |_, _| Err::<(), _>(Error::new(Status::OutOfMemory, "none"))),
    );
    assert_eq!((own.shortages.lock().unwrap().len(), of_space.shortages.lock().unwrap().len()), (3, 3));
    assert_eq!(set(None, std::ptr::null_mut(), None), OK);
    assert_eq!(of_space.freed.load(SeqCst), 1);
    release(r);
    assert_eq!(own.freed.load(SeqCst), 1);
    nothing_left(manager, &space);
}

/// What a callback is handed is not given back while it runs, although it was replaced and its
/// reservation released.
#[test]
fn what_a_callback_holds_outlives_its_last_call() {
    struct Slow {
        entered: mpsc::Sender<()>,
        go: Mutex<mpsc::Receiver<()>>,
        freed: Arc<AtomicU64>,
    }
    unsafe extern "C" fn waits(_: *const gpumem_overdraw, user: *mut c_void) -> i64 {
        // SAFETY: `user` below, which is freed after the last call.
        let slow = unsafe { &*user.cast::<Slow>() };
        slow.entered.send(()).unwrap();
        slow.go.lock().unwrap().recv().unwrap();
        assert_eq!(slow.freed.load(SeqCst), 0);
        GPUMEM_OVERDRAW_IGNORE
    }
    unsafe extern "C" fn free_slow(user: *mut c_void) {
        // SAFETY: made by `Box::into_raw` below, and this is called once.
        let slow = unsafe { Box::from_raw(user.cast::<Slow>()) };
        slow.freed.fetch_add(1, SeqCst);
    }

    let (_turn, manager, space) = start();
    let ((entered, has_entered), (go, waits_for_go)) = (mpsc::channel(), mpsc::channel());
    let freed = Arc::new(AtomicU64::new(0));
    let slow = Box::new(Slow { entered, go: Mutex::new(waits_for_go), freed: freed.clone() });
    let policy = gpumem_reserve_policy {
        callback: Some(waits),
        user: Box::into_raw(slow).cast(),
        free_user: Some(free_slow),
        ..policy(&Script::new(&[]))
    };
    let r = reserve(Some(&policy), None) as usize;
    std::thread::scope(|s| {
        let draws = s.spawn(|| {
            assert_eq!(gpumem_reservation_attach_thread(r as gpumem_reservation), OK);
            manager.draw(&space, None, 11 * MIB, 0).map(drop)
        });
        has_entered.recv().unwrap();
        // SAFETY: null is allowed.
        assert_eq!(unsafe { gpumem_reservation_policy_set(r as gpumem_reservation, std::ptr::null()) }, OK);
        release(r as gpumem_reservation);
        assert_eq!(freed.load(SeqCst), 0);
        go.send(()).unwrap();
        // By now the reservation is gone, and the allocation is one outside of any.
        draws.join().unwrap().unwrap();
    });
    assert_eq!(freed.load(SeqCst), 1);
    nothing_left(manager, &space);
}
