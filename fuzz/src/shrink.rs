//! Makes a failing program as short and plain as possible while it fails in the same way.

use crate::oracle::Failure;
use crate::program::{Arg, Op, Program};
use std::time::{Duration, Instant};

/// How often a program is tried if threads' operations meet by chance.
const TRIES: usize = 8;

pub struct Shrinker<'a> {
    /// Runs a program once.
    pub run: &'a mut dyn FnMut(&Program) -> Option<Failure>,
    pub limit: Duration,
}

impl Shrinker<'_> {
    /// The shortest program found, and how it fails.
    pub fn shrink(&mut self, mut program: Program, mut failure: Failure) -> (Program, Failure) {
        let start = Instant::now();
        // Operations after the failure are not needed, except perhaps other threads'.
        if let (1, Some(ops)) = (program.threads.len(), program.threads.first().map(Vec::len)) {
            let mut shorter = program.clone();
            shorter.threads[0].truncate((failure.op + 1).min(ops));
            self.take(&mut program, &mut failure, shorter);
        }
        loop {
            let before = (program.len(), program.settings.len());
            self.drop_threads(&mut program, &mut failure, start);
            self.drop_ops(&mut program, &mut failure, start);
            self.drop_settings(&mut program, &mut failure, start);
            self.simplify(&mut program, &mut failure, start);
            if (program.len(), program.settings.len()) == before || start.elapsed() > self.limit {
                return (program, failure);
            }
        }
    }

    /// Takes a smaller program if it fails in the same way.
    fn take(&mut self, program: &mut Program, failure: &mut Failure, smaller: Program) -> bool {
        let tries = if program.threads.len() > 1 { TRIES } else { 1 };
        for _ in 0..tries {
            if let Some(f) = (self.run)(&smaller).filter(|f| f.kind == failure.kind) {
                (*program, *failure) = (smaller, f);
                return true;
            }
        }
        false
    }

    fn drop_threads(&mut self, program: &mut Program, failure: &mut Failure, start: Instant) {
        let mut t = program.threads.len();
        while t > 0 && program.threads.len() > 1 && start.elapsed() < self.limit {
            t -= 1;
            let mut smaller = program.clone();
            smaller.threads.remove(t);
            self.take(program, failure, smaller);
        }
    }

    /// Drops parts of every thread, halves at first and single operations in the end.
    fn drop_ops(&mut self, program: &mut Program, failure: &mut Failure, start: Instant) {
        for t in 0..program.threads.len() {
            let mut part = program.threads[t].len().div_ceil(2);
            while part > 0 {
                let mut end = program.threads[t].len();
                while end > 0 && start.elapsed() < self.limit {
                    let from = end.saturating_sub(part);
                    let mut smaller = program.clone();
                    smaller.threads[t].drain(from..end);
                    self.take(program, failure, smaller);
                    end = from.min(program.threads[t].len());
                }
                part /= 2;
            }
        }
    }

    fn drop_settings(&mut self, program: &mut Program, failure: &mut Failure, start: Instant) {
        // The first setting is the backend.
        let mut s = program.settings.len();
        while s > 1 && start.elapsed() < self.limit {
            s -= 1;
            let mut smaller = program.clone();
            smaller.settings.remove(s);
            self.take(program, failure, smaller);
        }
    }

    /// Makes arguments plainer: no fields, no flags, round sizes.
    fn simplify(&mut self, program: &mut Program, failure: &mut Failure, start: Instant) {
        for t in 0..program.threads.len() {
            for at in 0..program.threads[t].len() {
                let Op::Call { args, .. } = program.threads[t][at].clone() else { continue };
                for (i, arg) in args.iter().enumerate() {
                    for plainer in plainer(arg) {
                        if start.elapsed() > self.limit {
                            return;
                        }
                        let mut smaller = program.clone();
                        if let Op::Call { args, .. } = &mut smaller.threads[t][at] {
                            args[i] = plainer;
                        }
                        if self.take(program, failure, smaller) {
                            break;
                        }
                    }
                }
            }
        }
    }
}

fn plainer(arg: &Arg) -> Vec<Arg> {
    match arg {
        Arg::Num(n) if *n > 1000 => {
            let round = [1 << 20, 4096].into_iter().filter(|r| r < n);
            [Arg::Num(1000)].into_iter().chain(round.map(Arg::Num)).collect()
        }
        Arg::Slot(kind, slot, plus) if *plus > 0 => vec![Arg::Slot(*kind, *slot, 0)],
        Arg::Slot(crate::program::Kind::Stream, ..) | Arg::Callback(_) => vec![Arg::Null],
        Arg::Struct(name, fields) => {
            let without = |i: usize| {
                let mut fewer = fields.clone();
                fewer.remove(i);
                Arg::Struct(name.clone(), fewer)
            };
            (0..fields.len()).filter(|i| fields[*i].0 != "size").map(without).collect()
        }
        _ => Vec::new(),
    }
}
