//! Driver calls that may fail for lack of memory that gpumem holds free. They are tried again once
//! gpumem has given it back. Besides what creates memory these are launches and what loads code: a
//! kernel's code is loaded by its first use, and it may need more local memory than there is.

use crate::cuda::{Code, OUT_OF_MEMORY};
use crate::served;

#[inline]
pub fn again(call: impl Fn() -> Code) -> Code {
    match call() {
        OUT_OF_MEMORY => after_giving_back(call),
        code => code,
    }
}

#[cold]
fn after_giving_back(call: impl Fn() -> Code) -> Code {
    let holders: Vec<_> = served::all().filter(|s| s.reclaimable() > 0).collect();
    if holders.is_empty() {
        return OUT_OF_MEMORY;
    }
    holders.iter().for_each(|s| s.give_back());
    call()
}
