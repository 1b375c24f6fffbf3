//! Problems whose optimum is known: a rectangle of steps × bytes, cut up.

use super::rng::Rng;
use gpumem::base::{Error, Result};
use gpumem::plan::problem::{Buffer, Problem, Step};

/// A piece: steps `[lower, upper)` by `size` bytes. Where its bytes begin is for the solver to
/// find.
#[derive(Clone, Copy)]
struct Piece {
    lower: Step,
    upper: Step,
    size: u64,
}

impl Piece {
    fn area(self) -> u128 {
        u128::from(self.upper - self.lower) * u128::from(self.size)
    }

    /// Cuts it in two at random: across steps or across bytes, whichever is possible.
    fn cut(self, rng: &mut Rng) -> (Piece, Piece) {
        let width = self.upper - self.lower;
        let across_bytes = self.size > 1 && (width == 1 || rng.one_in(2));
        if across_bytes {
            let size = rng.between(1, self.size - 1);
            (Piece { size, ..self }, Piece { size: self.size - size, ..self })
        } else {
            let at = self.lower + rng.between(1, width.saturating_sub(1));
            (Piece { upper: at, ..self }, Piece { lower: at, ..self })
        }
    }
}

/// A rectangle of `width` steps by `height` bytes, cut into `count` buffers and these shuffled. At
/// every step they sum to `height`, and uncut they fit in it: the optimum is `height`.
///
/// `count` may be from 1 to `width × height`.
pub fn guillotine(seed: u64, count: usize, width: Step, height: u64) -> Result<Problem> {
    guillotine_with_holes(seed, count, 0, width, height)
}

/// As [`guillotine`], and then up to `holes` of the buffers are taken away, none of which is live
/// at one random step: that step is still full, and the optimum still `height`. `count` buffers are
/// left, or a few more if too many are live at that step.
///
/// `count + holes` may be from 1 to `width × height`.
pub fn guillotine_with_holes(seed: u64, count: usize, holes: usize, width: Step, height: u64) -> Result<Problem> {
    let all = Piece { lower: 0, upper: width, size: height };
    let wanted = count.saturating_add(holes);
    if wanted == 0 || wanted as u128 > all.area() {
        return Err(Error::invalid(format!(
            "{width} steps by {height} bytes cannot be cut into {wanted} buffers; ask for 1 to {}",
            all.area()
        )));
    }
    let mut rng = Rng::new(seed);
    let mut pieces = Vec::with_capacity(wanted);
    let mut open = vec![(all, wanted)];
    while let Some((piece, into)) = open.pop() {
        if into == 1 {
            pieces.push(piece);
            continue;
        }
        let (one, other) = piece.cut(&mut rng);
        // About as many for each as it has area, give or take a half, so that sizes differ; at most
        // one for each step and byte, at least one.
        let share = (into as u128).saturating_mul(one.area()) / piece.area().max(1);
        let share = (share as u64).saturating_mul(rng.between(50, 150)) / 100;
        let most = one.area().min(into as u128 - 1) as u64;
        let least = (into as u128).saturating_sub(other.area()).max(1) as u64;
        let for_one = share.clamp(least, most) as usize;
        open.push((one, for_one));
        open.push((other, into - for_one));
    }
    rng.shuffle(&mut pieces);
    let full = rng.below(width);
    let mut to_go = holes;
    pieces.retain(|piece| {
        let keep = to_go == 0 || (piece.lower..piece.upper).contains(&full);
        to_go -= usize::from(!keep);
        keep
    });
    let mut problem = Problem::new();
    for piece in pieces {
        problem.add(Buffer::new(piece.size, piece.lower, piece.upper))?;
    }
    Ok(problem)
}
