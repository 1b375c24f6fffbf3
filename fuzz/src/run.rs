//! Runs a program in a child process, with the oracle beside it.

use crate::generate::ENDS;
use crate::header::{Function, Header, Struct};
use crate::oracle::{calls, failure, is_plain, is_wrong, Block, Failure, Model};
use crate::program::{Arg, Callback, Kind, Op, Program, BOXES, SCRATCH, SLOTS};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void, CString};
use std::path::Path;
use std::sync::{Barrier, Mutex, PoisonError};

/// A program that takes longer than this counts as hung, seconds.
const LIMIT: u32 = 60;
/// The exit code of a child that has found no library to test.
const NO_LIBRARY: c_int = 98;
/// Operations between two checks of the whole state.
const STRIDE: usize = 16;

/// The child's messages to its parent, in shared memory.
#[repr(C)]
struct Shared {
    /// The operation that each thread is in.
    at: [u32; 64],
    thread: u32,
    op: u32,
    calls: u64,
    accepted: u64,
    /// Kind, text and check of a failure; `lengths` has their lengths.
    words: [[u8; 2048]; 3],
    lengths: [u32; 3],
    told: std::sync::atomic::AtomicU32,
}

/// How a run went.
pub struct Outcome {
    pub failure: Option<Failure>,
    pub calls: u64,
    /// Calls that returned GPUMEM_OK.
    pub accepted: u64,
}

/// Runs a program in a child, which a crash ends instead of this process.
pub fn run(header: &Header, library: &Path, program: &Program) -> Result<Outcome, String> {
    let size = std::mem::size_of::<Shared>();
    // SAFETY: new memory, all zero, which is a valid Shared.
    let shared = unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if at == libc::MAP_FAILED {
            return Err("mmap: no memory to share with a child".to_owned());
        }
        at.cast::<Shared>()
    };
    // SAFETY: this process has one thread, so its child may do anything.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(format!("fork: {}", std::io::Error::last_os_error()));
    }
    if child == 0 {
        // SAFETY: the child's own memory and limits.
        let code = unsafe {
            libc::alarm(LIMIT);
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
            if !shows() {
                libc::dup2(null, 2);
            }
            in_child(header, library, program, shared)
        };
        // SAFETY: nothing of the parent's is to run here.
        unsafe { libc::_exit(code) };
    }
    let mut status: c_int = 0;
    // SAFETY: a child of this process's.
    while unsafe { libc::waitpid(child, &mut status, 0) } < 0 {}
    // SAFETY: the child is gone, so nobody else writes there.
    let told = unsafe { &*shared };
    let word = |i: usize| String::from_utf8_lossy(&told.words[i][..told.lengths[i] as usize]).into_owned();
    let mut found = if told.told.load(std::sync::atomic::Ordering::Acquire) != 0 {
        Some(Failure {
            kind: word(0),
            text: word(1),
            check: word(2),
            thread: told.thread as usize,
            op: told.op as usize,
        })
    } else if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let kind = if signal == libc::SIGALRM { "hang".to_owned() } else { format!("signal {signal}") };
        let at: Vec<String> = told.at[..program.threads.len()].iter().map(u32::to_string).collect();
        Some(Failure {
            op: told.at[0] as usize,
            ..failure(&kind, format!("in operation {}", at.join(", ")), String::new())
        })
    } else if libc::WEXITSTATUS(status) == NO_LIBRARY {
        return Err(format!(
            "{}: it cannot be loaded, or lacks a function that the headers declare",
            library.display()
        ));
    } else if libc::WEXITSTATUS(status) != 0 {
        Some(failure("exit", format!("the process ended with {}", libc::WEXITSTATUS(status)), String::new()))
    } else {
        None
    };
    if let Some(f) = &mut found {
        f.op = f.op.min(program.threads.get(f.thread).map_or(0, Vec::len));
    }
    let outcome = Outcome { failure: found, calls: told.calls, accepted: told.accepted };
    // SAFETY: mapped above, and read for the last time.
    unsafe { libc::munmap(shared.cast(), size) };
    Ok(outcome)
}

/// Whether stderr shows the library's output and the program's calls.
fn shows() -> bool {
    std::env::var_os("GPUMEM_FUZZ_SHOW").is_some()
}

fn in_child(header: &Header, library: &Path, program: &Program, shared: *mut Shared) -> c_int {
    let show = shows();
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_str().is_some_and(|n| n.starts_with("GPUMEM_"))) {
        std::env::remove_var(name);
    }
    for (name, value) in &program.settings {
        std::env::set_var(name, value);
    }
    // SAFETY: gpumem's library, whose start has no conditions.
    let Ok(lib) = (unsafe { libloading::Library::new(library) }) else { return NO_LIBRARY };
    let mut entries = HashMap::new();
    for function in &header.functions {
        // SAFETY: the header says that it is a function; how it is called follows from there.
        let Ok(symbol) = (unsafe { lib.get::<Entry>(function.name.as_bytes()) }) else { return NO_LIBRARY };
        entries.insert(function.name.as_str(), (*symbol, function));
    }
    let machine = Machine {
        header,
        program,
        entries,
        model: Mutex::default(),
        boxes: Mutex::default(),
        shared,
        plain: is_plain(program),
        show,
        simulated: program.settings.iter().any(|(n, v)| *n == "GPUMEM_HOST_MODE" && v == "simulate"),
    };
    let barrier = Barrier::new(program.threads.len());
    std::thread::scope(|scope| {
        for (t, ops) in program.threads.iter().enumerate() {
            let (machine, barrier) = (&machine, &barrier);
            scope.spawn(move || {
                let mut thread = Thread::new(machine, t);
                barrier.wait();
                for (at, op) in ops.iter().enumerate() {
                    thread.at = at;
                    thread.note_progress();
                    if let Err(f) = thread.op(op) {
                        machine.tell(Failure { thread: t, op: at, ..f });
                    }
                }
                thread.leave();
            });
        }
    });
    let mut last = Thread::new(&machine, 0);
    last.at = program.threads.first().map_or(0, Vec::len);
    if let Err(f) = last.finish() {
        machine.tell(Failure { thread: 0, op: last.at, ..f });
    }
    // No destructors run: the library ends itself.
    std::mem::forget(lib);
    0
}

/// The type for every function by the machine's calling convention: integers and pointers in one
/// row of registers, floating-point numbers in another. A function ignores extra arguments.
type Entry = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, f64, f64) -> u64;

struct Machine<'a> {
    header: &'a Header,
    program: &'a Program,
    entries: HashMap<&'a str, (Entry, &'a Function)>,
    model: Mutex<Model>,
    boxes: Mutex<[u64; BOXES]>,
    shared: *mut Shared,
    plain: bool,
    show: bool,
    simulated: bool,
}

// SAFETY: `shared` is written by `tell`, which the first caller never leaves, by atomic words, and
// at places of one thread.
unsafe impl Sync for Machine<'_> {}

impl Machine<'_> {
    /// Tells the parent of a failure, and ends the process.
    fn tell(&self, f: Failure) -> ! {
        let _turn = self.boxes.lock();
        // SAFETY: one thread at a time, and the first ends the process.
        unsafe {
            let shared = &mut *self.shared;
            (shared.thread, shared.op) = (f.thread as u32, f.op as u32);
            for (i, word) in [&f.kind, &f.text, &f.check].into_iter().enumerate() {
                let n = word.len().min(shared.words[i].len());
                shared.words[i][..n].copy_from_slice(&word.as_bytes()[..n]);
                shared.lengths[i] = n as u32;
            }
            shared.told.store(1, std::sync::atomic::Ordering::Release);
            libc::_exit(77)
        }
    }

    fn model(&self) -> std::sync::MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with whole numbers only.
    fn plain_call(&self, name: &str, args: &[u64]) -> u64 {
        let a = |i: usize| args.get(i).copied().unwrap_or(0);
        // SAFETY: as many as the function takes; pointers are to memory of the caller's.
        self.entries.get(name).map_or(10, |(f, _)| unsafe { f(a(0), a(1), a(2), a(3), a(4), a(5), 0, 0, 0.0, 0.0) })
    }

    fn status(&self, name: &str, args: &[u64]) -> i32 {
        self.plain_call(name, args) as i32
    }
}

struct Thread<'a> {
    machine: &'a Machine<'a>,
    number: usize,
    at: usize,
    slots: [[u64; SLOTS]; Kind::ALL.len()],
    scratch: Vec<u64>,
    /// Structures, arrays and texts of the call in progress.
    memory: Vec<Box<[u64]>>,
    texts: Vec<CString>,
}

impl<'a> Thread<'a> {
    fn new(machine: &'a Machine<'a>, number: usize) -> Thread<'a> {
        let mut slots = [[0; SLOTS]; Kind::ALL.len()];
        slots[Kind::Fd as usize] = [u64::MAX; SLOTS];
        let scratch = vec![0; 8 * SCRATCH / 8];
        Thread { machine, number, at: 0, slots, scratch, memory: Vec::new(), texts: Vec::new() }
    }

    fn note_progress(&self) {
        // SAFETY: this thread's own word.
        unsafe { (*self.machine.shared).at[self.number] = self.at as u32 };
    }

    fn name(&self, slot: usize) -> String {
        format!("mem[{}][{slot}]", self.number)
    }

    fn op(&mut self, op: &Op) -> Result<(), Failure> {
        match op {
            Op::Call { function, args } => self.call(function, args)?,
            Op::Swap { slot, at } => {
                let ptr = self.slots[Kind::Mem as usize][*slot];
                // Memory that an arena frees belongs to its own thread.
                if self.machine.model().blocks.get(&ptr).is_some_and(|b| b.unusual) {
                    return Ok(());
                }
                let mut boxes = self.machine.boxes.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::swap(&mut boxes[*at], &mut self.slots[Kind::Mem as usize][*slot]);
            }
            Op::Fill { slot, bytes, value } => self.fill(*slot, *bytes, *value),
            Op::Verify { slot } => self.verify(*slot)?,
        }
        if self.at % STRIDE == STRIDE - 1 && self.machine.program.threads.len() == 1 {
            self.look_around()?;
        }
        Ok(())
    }

    /// A block that this thread may use, with what is known of it.
    fn usable(&self, slot: usize) -> Option<(u64, Block)> {
        let ptr = self.slots[Kind::Mem as usize][slot];
        let block = self.machine.model().blocks.get(&ptr).cloned()?;
        (!block.evictable || block.holds > 0).then_some((ptr, block))
    }

    fn fill(&mut self, slot: usize, bytes: u64, value: u8) {
        let Some((ptr, block)) = self.usable(slot).filter(|(_, b)| b.usable >= bytes && !b.unusual) else { return };
        let args = [ptr, u64::from(value), bytes, block.stream];
        let done = self.machine.status("gpumem_memset_async", &args) == 0;
        if let Some(b) = self.machine.model().blocks.get_mut(&ptr) {
            b.fill = done.then_some((bytes, value));
        }
    }

    fn verify(&mut self, slot: usize) -> Result<(), Failure> {
        let Some((ptr, block)) = self.usable(slot) else { return Ok(()) };
        let Some((bytes, value)) = block.fill else { return Ok(()) };
        // Unordered work runs out of order in the simulation, and with several threads even when it
        // runs at once: one thread's work waits while another runs an operation of that stream.
        if self.machine.model().racy && (self.machine.simulated || self.machine.program.threads.len() > 1) {
            return Ok(());
        }
        let mut seen = vec![!value; bytes as usize];
        if self.machine.status("gpumem_stream_sync", &[block.stream]) != 0
            || self.machine.status("gpumem_memcpy", &[seen.as_mut_ptr() as u64, ptr, bytes]) != 0
        {
            return Ok(());
        }
        match seen.iter().position(|b| *b != value) {
            None => Ok(()),
            Some(at) => {
                let text = format!("{} at {ptr:#x}: byte {at} of {bytes} is {} and not {value}", block.name, seen[at]);
                Err(failure("contents", text, String::new()))
            }
        }
    }

    /// The bits of an argument; a structure by value has several.
    fn bits(&mut self, arg: &Arg, ctype: &str) -> Vec<u64> {
        match arg {
            Arg::Num(n) => vec![*n],
            Arg::Real(r) => vec![r.to_bits()],
            Arg::Slot(kind, slot, plus) => vec![self.slots[*kind as usize][*slot].wrapping_add(*plus)],
            Arg::Out(kind, slot) => vec![&raw mut self.slots[*kind as usize][*slot] as u64],
            Arg::Scratch(size) => {
                // One place for each of a call's pointers.
                let place = self.memory.len() % 8;
                self.memory.push(Box::default());
                let words = &mut self.scratch[place * SCRATCH / 8..(place + 1) * SCRATCH / 8];
                words[0] = u64::from(*size);
                vec![words.as_mut_ptr() as u64]
            }
            Arg::Null => vec![0],
            Arg::Text(text) => {
                let text = CString::new(text.as_str()).unwrap_or_default();
                self.texts.push(text);
                vec![self.texts.last().map_or(0, |t| t.as_ptr() as u64)]
            }
            Arg::Array(of, items) => {
                let bits: Vec<u64> = items.iter().map(|i| self.bits(i, of)[0]).collect();
                let mut words = vec![0u64; bits.len() + 1].into_boxed_slice();
                for (i, bit) in bits.into_iter().enumerate() {
                    let size = self.machine.header.layout(of).0;
                    put(&mut words, i * size, size, bit);
                }
                self.memory.push(words);
                vec![self.memory.last().map_or(0, |m| m.as_ptr() as u64)]
            }
            Arg::Struct(name, fields) => {
                let words = self.structure(name, fields);
                if ctype == name {
                    return words.to_vec();
                }
                self.memory.push(words);
                vec![self.memory.last().map_or(0, |m| m.as_ptr() as u64)]
            }
            Arg::Callback(callback) => vec![address(*callback)],
        }
    }

    fn structure(&mut self, name: &str, fields: &[(String, Arg)]) -> Box<[u64]> {
        let header = self.machine.header;
        let Some(made) = header.structs.get(name) else { return Box::default() };
        let mut words = vec![0u64; made.size.div_ceil(8)].into_boxed_slice();
        for (field, arg) in fields {
            let Some(field) = made.fields.iter().find(|f| f.name == *field) else { continue };
            let bits = self.bits(arg, &field.ctype);
            let size = header.layout(&field.ctype).0.min(8);
            for (i, bit) in bits.into_iter().enumerate() {
                put(&mut words, field.offset + 8 * i, size, bit);
            }
        }
        words
    }

    fn call(&mut self, name: &str, args: &[Arg]) -> Result<(), Failure> {
        let Some(&(entry, function)) = self.machine.entries.get(name) else { return Ok(()) };
        self.memory.clear();
        self.texts.clear();
        let (mut whole, mut real) = (Vec::new(), Vec::new());
        for (arg, param) in args.iter().zip(&function.params) {
            let bits = self.bits(arg, &param.ctype);
            match param.ctype.as_str() {
                "double" => real.push(f64::from_bits(bits[0])),
                _ => whole.extend(bits),
            }
        }
        whole.resize(8, 0);
        real.resize(2, 0.0);
        let outs: Vec<(usize, usize, u64)> = args
            .iter()
            .filter_map(|a| match a {
                Arg::Out(kind, slot) => Some((*kind as usize, *slot, self.slots[*kind as usize][*slot])),
                _ => None,
            })
            .collect();
        let before = self.before(name, &whole);
        // SAFETY: arguments as the header declares them; pointers are to this thread's memory. What
        // else they say is the library's to bear.
        let result = unsafe {
            entry(whole[0], whole[1], whole[2], whole[3], whole[4], whole[5], whole[6], whole[7], real[0], real[1])
        };
        // SAFETY: counted by one thread, or nearly right.
        unsafe { (*self.machine.shared).calls += 1 };
        let status = match function.result.as_str() {
            "gpumem_status" if name != "gpumem_last_status" => Some(result as i32),
            _ => None,
        };
        if let Some(status) = status {
            self.contract(name, status, &outs)?;
        }
        let checked = self.after(function, args, &whole, &outs, result, status, before);
        if self.machine.program.threads.len() > 1 {
            self.forget(name, args, status);
        }
        checked
    }

    /// Empties slots whose pointers are stale: through them one thread would free another's memory
    /// at the same address.
    fn forget(&mut self, name: &str, args: &[Arg], status: Option<i32>) {
        let first =
            args.iter().find_map(|a| if let Arg::Slot(kind, slot, _) = a { Some((*kind, *slot)) } else { None });
        if let Some((kind, slot)) = first {
            let moved = name == "gpumem_realloc_async" && status == Some(0) && !args.contains(&Arg::Out(kind, slot));
            if ENDS.contains(&name) || moved {
                self.slots[kind as usize][slot] = 0;
            }
        }
        if ["arena", "capture", "torch"].iter().any(|part| name.contains(part)) {
            let model = self.machine.model();
            for ptr in &mut self.slots[Kind::Mem as usize] {
                if !model.blocks.contains_key(ptr) {
                    *ptr = 0;
                }
            }
        }
    }

    /// The library's text for this thread's last failed call, at most 1199 bytes.
    fn last_error(&self) -> String {
        let mut text = vec![0u8; 1200];
        let length = self.machine.plain_call("gpumem_last_error", &[text.as_mut_ptr() as u64, 1200]) as usize;
        String::from_utf8_lossy(&text[..length.min(1199)]).into_owned()
    }

    /// Checks the contract of every call.
    fn contract(&mut self, name: &str, status: i32, outs: &[(usize, usize, u64)]) -> Result<(), Failure> {
        if status == 0 {
            // SAFETY: as above.
            unsafe { (*self.machine.shared).accepted += 1 };
            return Ok(());
        }
        let said = self.last_error();
        let length = said.len();
        let last = self.machine.status("gpumem_last_status", &[]);
        if is_wrong(status) {
            let check = format!("CHECK(last != {status});");
            return Err(failure(&format!("status of {name}"), format!("{name} ends with {status}: {said}"), check));
        }
        if !self.machine.header.documents(name, status) {
            let check = format!("CHECK(last != {status});");
            let text = format!("{name} ends with {status}, which the header does not list: {said}");
            return Err(failure(&format!("undocumented status of {name}"), text, check));
        }
        if last != status || length == 0 || length > 1000 {
            let text =
                format!("{name} ends with {status}, gpumem_last_status is {last}, the text has {length} bytes: {said}");
            let check = "CHECK(gpumem_last_status() == last && gpumem_last_error(NULL, 0) > 0 && \
                         gpumem_last_error(NULL, 0) <= 1000);";
            return Err(failure("last error", text, check.to_owned()));
        }
        for (kind, slot, old) in outs {
            if self.slots[*kind][*slot] != *old && name != "gpumem_export_fd" {
                let text = format!("{name} ends with {status} and has written its output all the same");
                let check = format!("CHECK({}[{}][{slot}] == NULL);", Kind::ALL[*kind].c().0, self.number);
                return Err(failure("output of a failed call", text, check));
            }
        }
        Ok(())
    }

    /// Blocks that the call may end: they are forgotten before it, as another thread may get their
    /// memory during it.
    fn before(&mut self, name: &str, whole: &[u64]) -> Vec<(u64, Block)> {
        let mut model = self.machine.model();
        match name {
            "gpumem_free"
            | "gpumem_free_async"
            | "gpumem_free_id"
            | "gpumem_free_id_async"
            | "gpumem_torch_free"
            | "gpumem_realloc_async" => {
                // The number of an allocation that is gone frees nothing.
                let is_other = |b: &Block| name.starts_with("gpumem_free_id") && b.id != whole[1];
                if model.get(whole[0]).is_some_and(is_other) {
                    return Vec::new();
                }
                let block = model.remove(whole[0]);
                if let Some(b) = &block {
                    let stream = match name {
                        "gpumem_free_async" => Some(whole[1]),
                        "gpumem_free_id_async" | "gpumem_realloc_async" => Some(whole[2]),
                        "gpumem_torch_free" => Some(whole[3]),
                        _ => None,
                    };
                    // The memory's own stream may still be working on it, or on earlier memory at
                    // this address, even if the other stream was recorded.
                    model.racy |= stream.is_some_and(|s| s != b.stream);
                }
                block.map(|b| (whole[0], b)).into_iter().collect()
            }
            _ if ends_many(name) => {
                model.begin_ending();
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn after(
        &mut self,
        function: &Function,
        args: &[Arg],
        whole: &[u64],
        outs: &[(usize, usize, u64)],
        result: u64,
        status: Option<i32>,
        before: Vec<(u64, Block)>,
    ) -> Result<(), Failure> {
        let name = function.name.as_str();
        let failed = status.is_some_and(|s| s != 0);
        if self.machine.show {
            let (known, said) =
                (before.first().map(|(_, b)| b.id), if failed { self.last_error() } else { String::new() });
            eprintln!("{}.{} {name} {whole:x?} ended {} {said}; known {known:?}", self.number, self.at, result as i32);
        }
        if ends_many(name) {
            return self.finish_ending();
        }
        let old = before.into_iter().next();
        if failed {
            if let Some((ptr, block)) = old {
                let is_mine = block.holds == 0 && !block.unusual;
                let strict = name == "gpumem_free_async" && is_mine && self.machine.plain && status != Some(13);
                self.machine.model().add(ptr, block)?;
                if strict {
                    let text = format!("{name} of a live block at {ptr:#x} ends with {status:?}");
                    return Err(failure("free refused", text, "CHECK(last == GPUMEM_OK);".to_owned()));
                }
            }
            return Ok(());
        }
        if let Some((kind, slot, _)) = outs.iter().find(|(k, ..)| *k == Kind::Mem as usize) {
            if function.result == "void *" {
                self.slots[*kind][*slot] = result;
            }
            let ptr = self.slots[*kind][*slot];
            return match ptr {
                0 => old.map_or(Ok(()), |(ptr, block)| self.machine.model().add(ptr, block)),
                _ => self.made(name, args, whole, *slot, ptr, old.map(|(_, b)| b)),
            };
        }
        let mut model = self.machine.model();
        if let Some(block) = model.blocks.get_mut(&whole[0]) {
            match name {
                "gpumem_hold" => block.holds += 1,
                "gpumem_unhold" => block.holds = block.holds.saturating_sub(1),
                "gpumem_arena_promote" | "gpumem_arena_escape" => block.unusual = true,
                _ => {}
            }
        }
        Ok(())
    }

    /// The lock is held from the look to the entry: a free by another thread takes its block from
    /// the model before it calls the library, so none can come between the two.
    fn finish_ending(&self) -> Result<(), Failure> {
        self.machine.model().finish_ending(|ptr, block| self.id_of(ptr) == Some(block.id))
    }

    fn id_of(&self, ptr: u64) -> Option<u64> {
        let mut id = 0u64;
        (self.machine.status("gpumem_allocation_id_get", &[ptr, &raw mut id as u64]) == 0).then_some(id)
    }

    fn made(
        &mut self,
        name: &str,
        args: &[Arg],
        whole: &[u64],
        slot: usize,
        ptr: u64,
        old: Option<Block>,
    ) -> Result<(), Failure> {
        let usable = self.machine.plain_call("gpumem_usable_size", &[ptr]);
        let field = |wanted: &str| match args.first() {
            Some(Arg::Struct(_, fields)) => fields.iter().find(|(n, _)| n == wanted).map(|(_, a)| a.clone()),
            _ => None,
        };
        let number = |wanted: &str| if let Some(Arg::Num(n)) = field(wanted) { n } else { 0 };
        let (asked, stream) = match name {
            "gpumem_malloc" => (whole[0], 0),
            "gpumem_malloc_async" => (whole[0], whole[1]),
            "gpumem_torch_malloc" => (whole[0], whole[2]),
            "gpumem_realloc_async" => (whole[1], whole[2]),
            "gpumem_malloc_with" => {
                let stream = field("stream").map_or(0, |a| self.bits(&a, "gpumem_stream")[0]);
                (number("bytes"), stream)
            }
            _ => (0, 0),
        };
        let c = self.name(slot);
        if usable < asked {
            let why = if usable == 0 { self.last_error() } else { String::new() };
            let text = format!("{c}: {asked} bytes were asked for, {usable} are usable {why}");
            return Err(failure("too small", text, format!("CHECK(gpumem_usable_size({c}) >= {asked}u);")));
        }
        let align = number("alignment").max(256);
        let is_known = name.contains("alloc") && !name.contains("torch");
        if is_known && align.is_power_of_two() && !ptr.is_multiple_of(align) && asked > 0 {
            let text = format!("{c}: {ptr:#x} is no multiple of {align}");
            return Err(failure("alignment", text, format!("CHECK((uintptr_t){c} % {align}u == 0);")));
        }
        let mut arena = 0u64;
        let in_arena = self.machine.status("gpumem_arena_find", &[ptr, &raw mut arena as u64]) == 0 && arena != 0;
        let mut fill = None;
        if let (Some(b), "gpumem_realloc_async") = (&old, name) {
            fill = b.fill.map(|(n, v)| (n.min(asked), v)).filter(|(n, _)| *n > 0);
        }
        let kept = old.as_ref();
        let block = Block {
            name: c,
            usable,
            stream,
            id: self.id_of(ptr).unwrap_or(0),
            fill,
            evictable: number("flags") & 8 != 0 || kept.is_some_and(|b| b.evictable),
            holds: 0,
            unusual: in_arena || !is_known || !self.machine.plain || kept.is_some_and(|b| b.unusual),
        };
        if self.machine.show {
            eprintln!("{}.{} {name} made {ptr:#x} {} {:?}", self.number, self.at, block.name, block);
        }
        // Imported memory, and memory made by plans and frameworks, must not overlap other memory
        // either.
        self.machine.model().add(ptr, block)
    }

    /// Runs the library's own checks, and compares its list of allocations with this one.
    fn look_around(&mut self) -> Result<(), Failure> {
        self.validate()?;
        if !self.machine.plain {
            return Ok(());
        }
        let mut seen: Vec<u64> = Vec::new();
        let visit: extern "C" fn(*const c_void, *mut c_void) -> c_int = collect;
        if self.machine.status("gpumem_visit_allocations", &[0, visit as usize as u64, &raw mut seen as u64]) != 0 {
            return Ok(());
        }
        seen.sort_unstable();
        let known: Vec<u64> = self.machine.model().blocks.keys().copied().collect();
        if seen == known {
            return Ok(());
        }
        let only = |a: &[u64], b: &[u64]| a.iter().find(|p| !b.contains(p)).copied();
        let text = format!(
            "gpumem_visit_allocations lists {} allocations, {} are live; only there: {:x?}, only here: {:x?}",
            seen.len(),
            known.len(),
            only(&seen, &known),
            only(&known, &seen)
        );
        Err(failure("visit", text, format!("CHECK(count_allocations() == {});", known.len())))
    }

    fn validate(&mut self) -> Result<(), Failure> {
        let status = self.machine.status("gpumem_validate", &[]);
        if status == 10 || status == 14 {
            return Err(failure("validate", self.last_error(), format!("CHECK(gpumem_validate() != {status});")));
        }
        Ok(())
    }

    /// Ends this thread's arenas and captures, as nobody else can.
    fn leave(&mut self) {
        for kind in [Kind::Arena, Kind::Capture] {
            let (name, second) = match kind {
                Kind::Arena => ("gpumem_arena_abort", 0),
                _ => ("gpumem_capture_abort", 0),
            };
            for slot in 0..SLOTS {
                let handle = self.slots[kind as usize][slot];
                if handle != 0 {
                    self.before(name, &[handle]);
                    let _ = self.machine.status(name, &[handle, second]);
                    let _ = self.finish_ending();
                }
            }
        }
    }

    fn give_back(&self) {
        for device in 0..2 {
            if self.machine.status("gpumem_device_set", &[device]) == 0 {
                self.machine.status("gpumem_device_sync", &[]);
            }
        }
        self.machine.status("gpumem_trim", &[0]);
    }

    /// Allocations, live bytes and mapped bytes of the first device; zeros if they cannot be asked
    /// for.
    fn left(&self, layout: &Struct) -> [u64; 3] {
        let at = |name: &str| layout.fields.iter().find(|f| f.name == name).map_or(0, |f| f.offset / 8);
        let mut stats = vec![0u64; layout.size.div_ceil(8)];
        stats[0] = layout.size as u64;
        match self.machine.status("gpumem_stats_get", &[0, stats.as_mut_ptr() as u64]) {
            0 => ["allocations", "live", "mapped"].map(|name| stats[at(name)]),
            _ => [0; 3],
        }
    }

    /// Frees everything, and checks that nothing is live and all memory goes back.
    fn finish(&mut self) -> Result<(), Failure> {
        self.look_around()?;
        let machine = self.machine;
        let left: Vec<u64> = machine.model().blocks.keys().copied().collect();
        for ptr in left {
            machine.plain_call("gpumem_free", &[ptr]);
        }
        self.give_back();
        self.validate()?;
        let racy = machine.model().racy;
        let mut reports = 0u64;
        let counted = machine.status("gpumem_sim_reports_get", &[&raw mut reports as u64]) == 0;
        if counted && reports > 0 && !racy && machine.plain && machine.simulated {
            let text = format!("the host device has found {reports} mistakes in work that was ordered well");
            let check = "{ uint64_t reports; gpumem_sim_reports_get(&reports); CHECK(reports == 0); }";
            return Err(failure("order", text, check.to_owned()));
        }
        let quarantined = machine.program.settings.iter().any(|(n, _)| *n == "GPUMEM_ARENA_DEBUG");
        if !machine.plain || calls(machine.program).any(|c| c == "gpumem_stream_destroy") || quarantined {
            return Ok(());
        }
        let Some(made) = machine.header.structs.get("gpumem_stats") else { return Ok(()) };
        // Memory being moved between tiers goes back once the move has ended.
        let mut seen = self.left(made);
        for _ in 0..1000 {
            if seen == [0; 3] {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
            self.give_back();
            seen = self.left(made);
        }
        if seen != [0; 3] {
            let text = format!(
                "with everything freed and trimmed: {} allocations, {} bytes live, {} mapped",
                seen[0], seen[1], seen[2]
            );
            return Err(failure("leak", text, "CHECK(nothing_left());".to_owned()));
        }
        Ok(())
    }
}

/// Calls that may end many blocks, of other threads as well.
fn ends_many(name: &str) -> bool {
    [
        "gpumem_arena_exit",
        "gpumem_arena_abort",
        "gpumem_torch_release_pool",
        "gpumem_capture_end",
        "gpumem_capture_abort",
        "gpumem_capture_release",
    ]
    .contains(&name)
}

/// Writes the low bytes of a number at a place in a structure.
fn put(words: &mut [u64], at: usize, size: usize, bits: u64) {
    for i in 0..size.min(8) {
        let (word, shift) = ((at + i) / 8, (at + i) % 8 * 8);
        if let Some(word) = words.get_mut(word) {
            *word = *word & !(0xff << shift) | (bits >> (8 * i) & 0xff) << shift;
        }
    }
}

extern "C" fn collect(allocation: *const c_void, user: *mut c_void) -> c_int {
    // SAFETY: a gpumem_allocation, whose third field, at 8, is the address, and the list of the
    // visit's caller.
    unsafe {
        let base = allocation.cast::<u64>().add(1).read();
        (*user.cast::<Vec<u64>>()).push(base);
    }
    0
}

extern "C" fn visitor(_: *const c_void, _: *mut c_void) -> c_int {
    0
}
extern "C" fn event(_: *const c_void, _: *mut c_void) {}
extern "C" fn stack(_: *mut c_char, _: usize, _: *mut c_void) -> usize {
    0
}
extern "C" fn overdraw(_: *const c_void, _: *mut c_void) -> i64 {
    0
}
extern "C" fn shortage(_: *const c_void, _: *mut c_void) -> i32 {
    0
}
extern "C" fn progress(_: u64, _: u64, _: *mut c_void) -> i32 {
    0
}
extern "C" fn free_user(_: *mut c_void) {}

fn address(callback: Callback) -> u64 {
    let at = match callback {
        Callback::Visitor => visitor as *const () as usize,
        Callback::Event => event as *const () as usize,
        Callback::Stack => stack as *const () as usize,
        Callback::Overdraw => overdraw as *const () as usize,
        Callback::Shortage => shortage as *const () as usize,
        Callback::Progress => progress as *const () as usize,
        Callback::FreeUser => free_user as *const () as usize,
    };
    at as u64
}
