//! Problems in the shape of a training step.

use super::rng::Rng;
use gpumem::base::Result;
use gpumem::plan::problem::{Buffer, Kind, Problem, Step};

/// Sizes are multiples of it, bytes: what an allocator rounds tensors to.
const GRAIN: u64 = 512;
/// Largest power of two in a size, in grains: 4 MiB, which times the largest odd factor makes 124
/// MiB.
const LARGEST_POWER: u64 = 13;
/// Steps of a layer, forward and backward alike.
const LAYER_STEPS: Step = 4;
/// Buffers of a layer.
const PER_LAYER: usize = 9;
/// Different layers, which repeat as blocks of a network do.
const LAYER_KINDS: usize = 6;

/// The sizes of one kind of layer, bytes.
struct Layer {
    weight: u64,
    output: u64,
    saved: u64,
    scratch: [u64; 2],
}

fn size(rng: &mut Rng) -> u64 {
    let odd = 2 * rng.below(16) + 1;
    (GRAIN * odd) << rng.below(LARGEST_POWER + 1)
}

/// About one training step of a network of `count / 9` layers, in `count` buffers.
///
/// Forward, layer by layer, four steps each; one step for the loss; backward in the opposite order;
/// one step for the update. Per layer a weight (a parameter, live throughout), two activations
/// (live from the layer's forward steps to its backward steps), two scratch buffers each way (live
/// for one to three steps), the gradient of its output (live from the next layer's backward steps
/// to the end of its own) and of its weight (live from its backward steps to the update). The rest
/// up to `count` are scratch buffers of random layers. Sizes are 512 × odd up to 31 × a power of
/// two, from 512 B to 124 MiB; six kinds of layers repeat, so that many are equal.
pub fn training(seed: u64, count: usize) -> Result<Problem> {
    let mut rng = Rng::new(seed);
    let kinds: Vec<Layer> = (0..LAYER_KINDS)
        .map(|_| Layer {
            weight: size(&mut rng),
            output: size(&mut rng),
            saved: size(&mut rng),
            scratch: [size(&mut rng), size(&mut rng)],
        })
        .collect();
    let layers = (count / PER_LAYER).max(1) as Step;
    let backward_starts = LAYER_STEPS * layers + 1;
    let update = backward_starts + LAYER_STEPS * layers;
    let end = update + 1;
    let mut problem = Problem::new();
    for (i, kind) in (0..layers).zip(kinds.iter().cycle()) {
        let forward = LAYER_STEPS * i;
        let backward = backward_starts + LAYER_STEPS * (layers - 1 - i);
        let mut of_layer = vec![
            Buffer { kind: Kind::Parameter, ..Buffer::new(kind.weight, 0, end) },
            Buffer::new(kind.output, forward + rng.below(LAYER_STEPS), backward + 1 + rng.below(LAYER_STEPS)),
            Buffer::new(kind.saved, forward + rng.below(LAYER_STEPS), backward + 1 + rng.below(LAYER_STEPS)),
            Buffer::new(kind.output, backward.saturating_sub(1), backward + LAYER_STEPS),
            Buffer::new(kind.weight, backward + rng.below(LAYER_STEPS), end),
        ];
        of_layer.extend(kind.scratch.map(|size| scratch(&mut rng, size, forward)));
        of_layer.extend(kind.scratch.map(|size| scratch(&mut rng, size, backward)));
        for buffer in of_layer.into_iter().take(count - problem.buffers().len()) {
            problem.add(buffer)?;
        }
    }
    while problem.buffers().len() < count {
        let start = LAYER_STEPS * rng.below(2 * layers);
        let sizes = kinds.iter().flat_map(|kind| kind.scratch);
        let size = sizes.cycle().nth(rng.below(2 * LAYER_KINDS as u64) as usize).unwrap_or(GRAIN);
        let buffer = scratch(&mut rng, size, start);
        problem.add(buffer)?;
    }
    Ok(problem)
}

/// A buffer of one layer that lives for one to three of the four steps from `start` on.
fn scratch(rng: &mut Rng, size: u64, start: Step) -> Buffer {
    let length = rng.between(1, LAYER_STEPS - 1);
    let lower = start + rng.below(LAYER_STEPS - length + 1);
    Buffer::new(size, lower, lower + length)
}
