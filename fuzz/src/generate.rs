//! Random programs: mostly sensible ones, as only those get far, with a wrong argument now and
//! then.

use crate::header::{Function, Header, Param};
use crate::program::{Arg, Callback, Kind, Op, Program, BOXES, SLOTS};
use fastrand::Rng;

/// The theme of a program: parts of functions' names. The first functions are in every program.
const THEMES: [&[&str]; 12] = [
    &[],
    &[],
    &["arena", "check", "free_id", "allocation_id"],
    &["arena", "plan_materialise"],
    &["plan"],
    &["reserv", "token", "space"],
    &["evict", "restore", "hold", "location", "space"],
    &["host", "reserv"],
    &["capture", "sim_"],
    &["torch", "stream_pool"],
    &["export", "import", "limit", "trim"],
    &["stats", "dump", "visit", "snapshot", "record_", "callback", "driver_calls"],
];

const CORE: [&str; 8] = [
    "gpumem_malloc",
    "gpumem_malloc_async",
    "gpumem_malloc_with",
    "gpumem_free",
    "gpumem_free_async",
    "gpumem_realloc_async",
    "gpumem_stream_create",
    "gpumem_record_stream",
];

/// Functions not called at random: they end something irrevocably, wait for what never comes, or
/// write where they are told to.
const LEFT_OUT: [&str; 8] = [
    "gpumem_init",
    "gpumem_reservation_shutdown",
    "gpumem_memcpy",
    "gpumem_memcpy_async",
    "gpumem_memset",
    "gpumem_memset_async",
    "gpumem_host_blocks_get",
    "gpumem_torch_init",
];

/// Functions that end whatever their first handle or pointer names.
pub const ENDS: [&str; 15] = [
    "gpumem_free",
    "gpumem_free_async",
    "gpumem_free_id",
    "gpumem_free_id_async",
    "gpumem_torch_free",
    "gpumem_host_free",
    "gpumem_stream_destroy",
    "gpumem_arena_exit",
    "gpumem_arena_abort",
    "gpumem_reservation_release",
    "gpumem_plan_destroy",
    "gpumem_token_destroy",
    "gpumem_stream_pool_destroy",
    "gpumem_host_blocks_free",
    "gpumem_sim_graph_destroy",
];

const SIZES: [u64; 16] = [
    0,
    1,
    255,
    256,
    257,
    4096,
    5000,
    65536,
    65537,
    1 << 20,
    (1 << 20) + 1,
    2 << 20,
    3 << 20,
    8 << 20,
    20 << 20,
    33 << 20,
];
const HUGE: [u64; 7] = [1 << 35, 1 << 40, 1 << 47, 1 << 63, u64::MAX, u64::MAX - 255, i64::MAX as u64];

/// What the generator assumes about a slot for memory: calls may fail.
#[derive(Clone, Default)]
struct Block {
    bytes: u64,
    /// The stream that it was allocated on.
    stream: Option<Arg>,
    fill: Option<(u64, u8)>,
    evictable: bool,
}

/// One thread's program in the making.
struct Thread<'a> {
    rng: Rng,
    header: &'a Header,
    functions: Vec<&'a Function>,
    ops: Vec<Op>,
    /// Which slots of each kind are probably in use.
    live: Vec<[bool; SLOTS]>,
    blocks: Vec<Block>,
    /// Whether contents are checked: not if streams are captured, or NULL means several streams.
    fills: bool,
    devices: u64,
    threads: usize,
    next_value: u8,
    /// Elements of this call's arrays, and the slot of its memory.
    count: usize,
    slot: usize,
}

pub fn program(header: &Header, seed: u64, threads: usize, ops: usize, disk: &str) -> Program {
    let mut rng = Rng::with_seed(seed);
    let mut themes: Vec<&str> = Vec::new();
    for _ in 0..=rng.usize(0..2) {
        themes.extend(rng.choice(THEMES).unwrap_or_default().iter());
    }
    let devices = if rng.usize(0..4) == 0 { 2 } else { 1 };
    let captures = themes.iter().any(|t| t.contains("capture"));
    let mut settings = vec![("GPUMEM_BACKEND", "host".to_owned()), ("GPUMEM_LOG", "0".to_owned())];
    let mut set = |one_in: usize, name: &'static str, values: &[&str], rng: &mut Rng| {
        if rng.usize(0..one_in) == 0 {
            settings.push((name, rng.choice(values).copied().unwrap_or_default().to_owned()));
        }
    };
    set(1, "GPUMEM_HOST_BYTES", &["4G", "256M", "64M"], &mut rng);
    set(1, "GPUMEM_HOST_MODE", &["simulate", "eager"], &mut rng);
    set(1, "GPUMEM_HOST_SEED", &["1", "2", "3", "4"], &mut rng);
    set(8, "GPUMEM_POOL", &["off"], &mut rng);
    set(3, "GPUMEM_ARENA_DEBUG", &["check", "poison", "unmap"], &mut rng);
    set(3, "GPUMEM_REUSE", &["settled"], &mut rng);
    set(4, "GPUMEM_TRIM_THRESHOLD", &["8M"], &mut rng);
    set(6, "GPUMEM_TRIM_INTERVAL", &["1ms"], &mut rng);
    set(4, "GPUMEM_LIMIT", &["32M"], &mut rng);
    set(6, "GPUMEM_PREALLOC", &["8M"], &mut rng);
    set(4, "GPUMEM_MOVER", &["off"], &mut rng);
    set(3, "GPUMEM_TIERS", &["on"], &mut rng);
    set(4, "GPUMEM_CAPTURE", &["auto"], &mut rng);
    set(8, "GPUMEM_PAGE_SIZE", &["4M"], &mut rng);
    if rng.usize(0..3) == 0 {
        settings.push(("GPUMEM_DISK", format!("{disk}=64M")));
    }
    settings.push(("GPUMEM_HOST_DEVICES", devices.to_string()));
    settings.push(("GPUMEM_PINNED_LIMIT", "256M".to_owned()));
    let named = |f: &&Function| themes.iter().any(|t| f.name.contains(t)) && !LEFT_OUT.contains(&f.name.as_str());
    let core = |f: &&Function| CORE.contains(&f.name.as_str());
    let mut functions: Vec<&Function> = header.functions.iter().filter(named).collect();
    if functions.is_empty() || rng.usize(0..5) == 0 {
        functions.extend(header.functions.iter().filter(|f| !LEFT_OUT.contains(&f.name.as_str())));
    }
    // While the default stream's memory is captured, that of every thread is, and the end of the
    // capture frees it under them.
    functions.retain(|f| threads == 1 || f.name != "gpumem_capture_begin");
    // The core functions come as often as all the others together.
    let rest = functions.len().max(CORE.len());
    let basic: Vec<&Function> = header.functions.iter().filter(core).collect();
    functions.extend(basic.iter().cycle().take(rest).copied());
    let make = |t: usize| {
        let mut thread = Thread {
            rng: Rng::with_seed(seed.wrapping_mul(1000).wrapping_add(t as u64)),
            header,
            functions: functions.clone(),
            ops: Vec::new(),
            live: vec![[false; SLOTS]; Kind::ALL.len()],
            blocks: vec![Block::default(); SLOTS],
            fills: devices == 1 && !captures,
            devices,
            threads,
            next_value: (t as u8 + 1) << 5,
            count: 0,
            slot: 0,
        };
        while thread.ops.len() < ops / threads {
            thread.step();
        }
        thread.ops
    };
    Program { seed, settings, threads: (0..threads).map(make).collect() }
}

impl Thread<'_> {
    fn one_in(&mut self, n: usize) -> bool {
        self.rng.usize(0..n) == 0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.u64(0..n)
    }

    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.usize(0..from.len())]
    }

    fn step(&mut self) {
        if self.threads > 1 && self.one_in(12) {
            let (slot, at) = (self.rng.usize(0..SLOTS), self.rng.usize(0..BOXES));
            self.blocks[slot] = Block::default();
            self.live[Kind::Mem as usize][slot] = true;
            return self.ops.push(Op::Swap { slot, at });
        }
        if self.one_in(6) {
            return self.verify();
        }
        let function = self.functions[self.rng.usize(0..self.functions.len())];
        // With every slot in use, something goes first.
        let makes_memory = function.result == "void *" || function.params.iter().any(|p| p.ctype == "void **");
        if makes_memory && self.live[Kind::Mem as usize].iter().all(|l| *l) {
            if let Some(free) = self.header.functions.iter().find(|f| f.name == "gpumem_free_async") {
                self.call(free);
            }
        }
        self.call(function);
    }

    fn verify(&mut self) {
        let slot = self.rng.usize(0..SLOTS);
        if self.blocks[slot].fill.is_some() {
            self.held(slot, Op::Verify { slot });
        }
    }

    /// Does something with the contents of a block, which cannot move meanwhile.
    fn held(&mut self, slot: usize, op: Op) {
        let call = |function: &str, args| Op::Call { function: function.to_owned(), args };
        let block = self.blocks[slot].clone();
        let memory = Arg::Slot(Kind::Mem, slot, 0);
        if block.evictable {
            self.ops.push(call("gpumem_hold", vec![memory.clone()]));
        }
        self.ops.push(op);
        if block.evictable {
            self.ops.push(call("gpumem_unhold", vec![memory, block.stream.unwrap_or(Arg::Null)]));
        }
    }

    fn call(&mut self, function: &Function) {
        self.count = self.rng.usize(0..5);
        self.slot = self.slot(Kind::Mem);
        let returns = function.result == "void *" && function.name.contains("malloc");
        if returns {
            self.slot = self.empty(Kind::Mem);
        }
        let mut args: Vec<Arg> = function.params.iter().map(|p| self.arg(function, p)).collect();
        if returns {
            args.push(Arg::Out(Kind::Mem, self.slot));
        }
        let ends = ENDS.contains(&function.name.as_str());
        if ends && self.blocks[self.slot].fill.is_some() && self.one_in(2) {
            self.held(self.slot, Op::Verify { slot: self.slot });
        }
        self.note(function, &args, ends);
        self.ops.push(Op::Call { function: function.name.clone(), args: args.clone() });
        let made = args.iter().find_map(|a| if let Arg::Out(Kind::Mem, slot) = a { Some(*slot) } else { None });
        if let Some(slot) = made.filter(|_| self.fills && !function.name.contains("import")) {
            let (bytes, value) = (self.blocks[slot].bytes.min(4 << 20), self.next_value);
            if bytes > 0 && self.one_in(2) {
                self.next_value = self.next_value.wrapping_add(1).max(1);
                self.blocks[slot].fill = Some((bytes, value));
                self.held(slot, Op::Fill { slot, bytes, value });
            }
        }
    }

    /// Notes what the call will probably have changed.
    fn note(&mut self, function: &Function, args: &[Arg], ends: bool) {
        let name = function.name.as_str();
        let mut ended = false;
        for (param, arg) in function.params.iter().zip(args) {
            match arg {
                Arg::Slot(kind, slot, _) if ends && !ended => {
                    ended = true;
                    self.live[*kind as usize][*slot] = false;
                    if *kind == Kind::Mem {
                        self.blocks[*slot].fill = None;
                    }
                }
                Arg::Out(kind, slot) => self.live[*kind as usize][*slot] = true,
                Arg::Num(bytes) if ["bytes", "size"].contains(&param.name.as_str()) => {
                    let old = &mut self.blocks[self.slot];
                    if name.contains("alloc") {
                        old.bytes = *bytes;
                        old.fill = old.fill.filter(|_| name.contains("realloc")).map(|(n, v)| (n.min(*bytes), v));
                        old.evictable &= name.contains("realloc");
                    }
                }
                Arg::Struct(_, fields) if name == "gpumem_malloc_with" => {
                    let number = |wanted: &str| {
                        fields.iter().find_map(|(n, a)| match a {
                            Arg::Num(v) if n == wanted => Some(*v),
                            _ => None,
                        })
                    };
                    self.blocks[self.slot] = Block {
                        bytes: number("bytes").unwrap_or(0),
                        stream: fields.iter().find(|(n, _)| n == "stream").map(|(_, a)| a.clone()),
                        fill: None,
                        evictable: number("flags").unwrap_or(0) & 8 != 0,
                    };
                }
                Arg::Slot(Kind::Stream, ..) | Arg::Null if name.contains("alloc") && param.ctype == "gpumem_stream" => {
                    self.blocks[self.slot].stream = Some(arg.clone());
                }
                _ => {}
            }
        }
        if name == "gpumem_malloc" {
            self.blocks[self.slot].stream = Some(Arg::Null);
        }
        if let Some(Arg::Out(Kind::Mem, slot)) = args.get(function.params.len()) {
            self.live[Kind::Mem as usize][*slot] = true;
        }
    }

    /// A slot that is probably in use.
    fn slot(&mut self, kind: Kind) -> usize {
        let live: Vec<usize> = (0..SLOTS).filter(|s| self.live[kind as usize][*s]).collect();
        if live.is_empty() || self.one_in(16) {
            return self.rng.usize(0..SLOTS);
        }
        self.of(&live)
    }

    /// A slot that is probably not in use.
    fn empty(&mut self, kind: Kind) -> usize {
        let empty: Vec<usize> = (0..SLOTS).filter(|s| !self.live[kind as usize][*s]).collect();
        if empty.is_empty() {
            return self.rng.usize(0..SLOTS);
        }
        self.of(&empty)
    }

    fn size(&mut self) -> u64 {
        match self.below(40) {
            0 => self.of(&HUGE),
            1..=12 => self.of(&SIZES),
            13..=24 => self.below(1 << 20),
            25..=29 => self.below(16 << 20),
            _ => self.below(5000),
        }
    }

    fn stream(&mut self) -> Arg {
        match self.below(8) {
            0 | 1 => Arg::Null,
            _ => Arg::Slot(Kind::Stream, self.slot(Kind::Stream), 0),
        }
    }

    /// The stream that memory was allocated on, mostly: all use of it is ordered there.
    fn stream_of(&mut self, function: &Function) -> Arg {
        let uses = function.params.iter().any(|p| p.ctype == "void *" && p.name == "ptr");
        match self.blocks[self.slot].stream.clone().filter(|_| uses) {
            Some(own) if !self.one_in(40) => own,
            _ => self.stream(),
        }
    }

    fn arg(&mut self, f: &Function, p: &Param) -> Arg {
        let (name, ctype) = (p.name.as_str(), p.ctype.as_str());
        let pointee = ctype.strip_suffix(" *").or(ctype.strip_suffix('*').filter(|c| c.ends_with('*'))).map(str::trim);
        match ctype {
            "gpumem_stream" if f.name == "gpumem_stream_destroy" => Arg::Slot(Kind::Stream, self.slot(Kind::Stream), 0),
            "gpumem_stream" => self.stream_of(f),
            "void *" if f.name.starts_with("gpumem_host") => Arg::Slot(Kind::Host, self.slot(Kind::Host), 0),
            "void *" if ["ptr", "addr"].contains(&name) => self.memory(),
            "void *" => Arg::Null,
            "char *" if !p.is_const => Arg::Scratch(0),
            "char *" => self.text(name),
            "void **" if p.is_const => self.array("void *", |t| t.memory()),
            "void **" if f.name.starts_with("gpumem_host_malloc") => Arg::Out(Kind::Host, self.empty(Kind::Host)),
            "void **" if f.name.contains("pointer") => Arg::Scratch(0),
            "void **" if f.name.contains("realloc") && !self.one_in(30) => Arg::Out(Kind::Mem, self.slot),
            "void **" => {
                self.slot = self.empty(Kind::Mem);
                Arg::Out(Kind::Mem, self.slot)
            }
            "uint32_t *" if p.is_const => self.array("uint32_t", |t| Arg::Num(t.below(6))),
            "uint64_t *" if p.is_const => self.array("uint64_t", |t| Arg::Num(t.below(5000))),
            "int" if name == "fd" => Arg::Slot(Kind::Fd, self.slot(Kind::Fd), 0),
            "uint64_t" if name == "id" => Arg::Slot(Kind::Id, self.slot, 0),
            "int *" if name == "out" && f.name == "gpumem_export_fd" => Arg::Out(Kind::Fd, self.empty(Kind::Fd)),
            "uint64_t *" if f.name == "gpumem_allocation_id_get" => Arg::Out(Kind::Id, self.slot),
            "gpumem_visitor" => Arg::Callback(Callback::Visitor),
            "gpumem_event_callback" => self.callback(Callback::Event),
            "gpumem_stack_callback" => self.callback(Callback::Stack),
            "gpumem_overdraw_callback" => self.callback(Callback::Overdraw),
            "gpumem_out_of_memory_callback" => self.callback(Callback::Shortage),
            "gpumem_progress" => self.callback(Callback::Progress),
            "gpumem_free_user" => self.callback(Callback::FreeUser),
            "double" => Arg::Real(self.of(&[0.0, 0.5, 0.65, 0.85, 1.0, 2.0, -1.0, 1e308])),
            _ => {
                if let Some(kind) = Kind::of(ctype) {
                    return match self.below(24) {
                        0 => Arg::Null,
                        _ => Arg::Slot(kind, self.slot(kind), 0),
                    };
                }
                if let Some(kind) = pointee.and_then(Kind::of) {
                    return Arg::Out(kind, self.empty(kind));
                }
                let inner = pointee.unwrap_or(ctype);
                if let Some(made) = self.header.structs.get(inner) {
                    return match (pointee.is_some(), p.is_const) {
                        (true, false) => Arg::Scratch(if self.one_in(24) { 3 } else { made.size as u32 }),
                        (true, true) if self.one_in(10) => Arg::Null,
                        _ => self.structure(f, inner),
                    };
                }
                match pointee {
                    Some(_) if name.contains("or_null") && self.one_in(2) => Arg::Null,
                    Some(_) if self.one_in(40) => Arg::Null,
                    Some(_) => Arg::Scratch(0),
                    None => Arg::Num(self.number(f, name, ctype)),
                }
            }
        }
    }

    fn callback(&mut self, callback: Callback) -> Arg {
        if self.one_in(2) {
            Arg::Null
        } else {
            Arg::Callback(callback)
        }
    }

    fn array(&mut self, of: &'static str, mut one: impl FnMut(&mut Self) -> Arg) -> Arg {
        Arg::Array(of, (0..self.count).map(|_| one(self)).collect())
    }

    fn memory(&mut self) -> Arg {
        match self.below(40) {
            0 => Arg::Null,
            // With several threads, it may be the start of another's memory.
            1 if self.threads == 1 => Arg::Slot(Kind::Mem, self.slot, self.rng.u64(1..70_000)),
            _ => Arg::Slot(Kind::Mem, self.slot, 0),
        }
    }

    fn text(&mut self, name: &str) -> Arg {
        match name {
            "path" => Arg::Text(self.of(&["fuzz.gmrec", "/nonexistent/x", ""]).to_owned()),
            _ if self.one_in(8) => Arg::Null,
            _ => Arg::Text(self.of(&["name", "w0", "w1", "", "%s%n", "a,b\n<&>"]).to_owned()),
        }
    }

    fn number(&mut self, f: &Function, name: &str, ctype: &str) -> u64 {
        let narrow = matches!(ctype, "int" | "int32_t" | "uint32_t");
        match name {
            "device" => match self.below(20) {
                0 => u64::from(u32::MAX),
                1 => 99,
                _ => self.below(self.devices),
            },
            "device_count" => self.devices,
            "node" => self.of(&[u64::from(u32::MAX), 0, 0, 7]),
            "timeout_ms" => self.below(3),
            "time_limit_ms" => 1 + self.below(10),
            "cap" if f.params.iter().any(|q| q.ctype == "char *" && !q.is_const) => {
                self.of(&[0, 1, 10, 64, 1000, 4096])
            }
            "cap" | "count" | "keep_len" | "base_count" | "input_count" | "output_count" | "gap_count" => {
                self.count as u64
            }
            "lower" | "upper" | "step" => self.below(12),
            "unit" => self.of(&[1, 256, 512, 7, 0]),
            "alignment" => self.of(&[0, 0, 0, 256, 4096, 1 << 21, 3]),
            "guard" => self.of(&[0, 0, 64]),
            "tag" => self.below(4),
            "first" | "i" => self.below(4),
            "offset" => 256 * self.below(100),
            "threads" => self.below(4),
            // Never the whole of a host's memory.
            "bytes" | "size" if f.name.starts_with("gpumem_host") => self.below(8 << 20),
            _ if narrow => self.below(6),
            _ => self.size(),
        }
    }

    fn structure(&mut self, f: &Function, ctype: &str) -> Arg {
        let Some(made) = self.header.structs.get(ctype) else { return Arg::Null };
        let mut fields = Vec::new();
        for field in &made.fields {
            let name = field.name.as_str();
            let value = match (ctype, name) {
                (_, "size") if self.one_in(40) => Arg::Num(3),
                (_, "size") => Arg::Num(made.size as u64),
                (_, "reserved" | "user" | "gaps" | "gap_count" | "tiers") => continue,
                (_, "space") => self.structure(f, "gpumem_space"),
                ("gpumem_space", "tier") => Arg::Num(1 + self.below(3)),
                ("gpumem_space", "id") => Arg::Num(self.below(8) / 7),
                ("gpumem_malloc_options", "flags") => Arg::Num(self.of(&[0, 0, 0, 8, 8, 1, 2, 4, 65536])),
                ("gpumem_malloc_options", "bytes") => Arg::Num(self.size()),
                ("gpumem_malloc_options", "stream") => self.stream(),
                ("gpumem_malloc_options", "arena" | "reservation" | "device") if !self.one_in(6) => continue,
                ("gpumem_reserve_options", "timeout_ms") => Arg::Num(self.below(3)),
                ("gpumem_reserve_options", "strategy") => Arg::Num(1 + self.below(5)),
                ("gpumem_reserve_policy", "kind") => Arg::Num(1 + self.below(4)),
                (_, "flags" | "share" | "layout" | "cancel" | "policy") if !self.one_in(5) => continue,
                _ => self.arg(f, field),
            };
            if value != Arg::Null && value != Arg::Num(0) {
                fields.push((field.name.clone(), value));
            }
        }
        Arg::Struct(ctype.to_owned(), fields)
    }
}
