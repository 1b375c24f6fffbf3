//! Driver calls that may fail for lack of memory that gpumem holds free. They are tried again once
//! gpumem has given it back. Besides what creates memory, pools, contexts, streams and events, and
//! what maps memory, which takes page tables, these are launches and what loads code: a kernel's
//! code is loaded by its first use, be it a question about it, and it may need more local memory
//! than there is.

use crate::cuda::{Code, OUT_OF_MEMORY};
use crate::real::Real;
use crate::served;

#[inline]
pub fn again(call: impl Fn() -> Code) -> Code {
    match call() {
        OUT_OF_MEMORY => after_giving_back(call),
        code => code,
    }
}

/// One device gives back after the other, that of the current context first: the call mostly needs
/// memory there, and the others may be busy for long.
#[cold]
fn after_giving_back(call: impl Fn() -> Code) -> Code {
    let own = Real::get().and_then(|real| real.device_of(real.current())).and_then(served::existing);
    let others = served::all().filter(|s| own.is_none_or(|own| own.dev != s.dev));
    for served in own.into_iter().chain(others) {
        if served.reclaimable() > 0 {
            served.give_back();
            match call() {
                OUT_OF_MEMORY => {}
                code => return code,
            }
        }
    }
    OUT_OF_MEMORY
}
