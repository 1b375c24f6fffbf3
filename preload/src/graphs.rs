//! Memset nodes that name no context.
//!
//! For such a node the driver takes the memory's context. Mapped memory has none, and the driver
//! says "invalid value". So a node over gpumem's memory gets the context in which the memory was
//! allocated, as from the driver.

use crate::cuda::{Code, NodeParams};
use crate::facts;
use crate::pressure::again;
use crate::real::Real;
use std::ffi::c_void;

/// `CU_GRAPH_NODE_TYPE_MEMSET`.
const MEMSET: u32 = 2;
/// Where `CUDA_MEMSET_NODE_PARAMS_v2` has the address, and the context.
const ADDRESS: usize = 2;
const CONTEXT: usize = 7;

/// Calls the driver with the parameters, completed where they lack a context.
unsafe fn with_context(params: *mut NodeParams, call: impl Fn(*mut NodeParams) -> Code) -> Code {
    // A node's kernel may have to be loaded.
    let call = |params| again(|| call(params));
    // SAFETY: null, or the program's parameters; each of their words is set or zero by contract.
    let Some(given) = (unsafe { params.as_ref() }) else { return call(params) };
    let lacks = given.0[0] as u32 == MEMSET && given.0[CONTEXT] == 0;
    let Some(context) = Some(given.0[ADDRESS]).filter(|_| lacks).and_then(facts::context) else { return call(params) };
    let mut completed = *given;
    completed.0[CONTEXT] = context as u64;
    call(&mut completed)
}

pub unsafe fn add_1(
    real: &Real,
    out: *mut usize,
    graph: usize,
    from: *const usize,
    count: usize,
    params: *mut NodeParams,
) -> Code {
    // SAFETY: the program's arguments.
    unsafe { with_context(params, |p| real.cuGraphAddNode(out, graph, from, count, p)) }
}

#[allow(clippy::too_many_arguments)]
pub unsafe fn add(
    real: &Real,
    out: *mut usize,
    graph: usize,
    from: *const usize,
    edges: *const c_void,
    count: usize,
    params: *mut NodeParams,
) -> Code {
    // SAFETY: the program's arguments.
    unsafe { with_context(params, |p| real.cuGraphAddNode_v2(out, graph, from, edges, count, p)) }
}

pub unsafe fn set(real: &Real, node: usize, params: *mut NodeParams) -> Code {
    // SAFETY: the program's arguments.
    unsafe { with_context(params, |p| real.cuGraphNodeSetParams(node, p)) }
}

pub unsafe fn set_in(real: &Real, exec: usize, node: usize, params: *mut NodeParams) -> Code {
    // SAFETY: the program's arguments.
    unsafe { with_context(params, |p| real.cuGraphExecNodeSetParams(exec, node, p)) }
}
