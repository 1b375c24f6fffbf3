//! A program: calls of the library by several threads, with arguments that name slots for the
//! calls' results.

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Mem,
    Host,
    Stream,
    Arena,
    Capture,
    Reservation,
    Plan,
    Token,
    StreamPool,
    Blocks,
    Graph,
    Fd,
    Id,
}

impl Kind {
    pub const ALL: [Kind; 13] = [
        Kind::Mem,
        Kind::Host,
        Kind::Stream,
        Kind::Arena,
        Kind::Capture,
        Kind::Reservation,
        Kind::Plan,
        Kind::Token,
        Kind::StreamPool,
        Kind::Blocks,
        Kind::Graph,
        Kind::Fd,
        Kind::Id,
    ];

    /// The slots' name in C, and the type of one.
    pub fn c(self) -> (&'static str, &'static str) {
        match self {
            Kind::Mem => ("mem", "void *"),
            Kind::Host => ("host", "void *"),
            Kind::Stream => ("stream", "gpumem_stream"),
            Kind::Arena => ("arena", "gpumem_arena"),
            Kind::Capture => ("capture", "gpumem_capture"),
            Kind::Reservation => ("reservation", "gpumem_reservation"),
            Kind::Plan => ("plan", "gpumem_plan"),
            Kind::Token => ("token", "gpumem_token"),
            Kind::StreamPool => ("pool", "gpumem_stream_pool"),
            Kind::Blocks => ("blocks", "gpumem_host_blocks"),
            Kind::Graph => ("graph", "gpumem_sim_graph"),
            Kind::Fd => ("fd", "int"),
            Kind::Id => ("id", "uint64_t"),
        }
    }

    /// The kind that a handle's type belongs to.
    pub fn of(ctype: &str) -> Option<Kind> {
        let handles = [
            Kind::Stream,
            Kind::Arena,
            Kind::Capture,
            Kind::Reservation,
            Kind::Plan,
            Kind::Token,
            Kind::StreamPool,
            Kind::Blocks,
            Kind::Graph,
        ];
        handles.into_iter().find(|k| k.c().1 == ctype)
    }
}

/// How many slots of a kind a thread has.
pub const SLOTS: usize = 8;
/// Slots that threads exchange memory through.
pub const BOXES: usize = 4;
/// Bytes at each pointer that is written to and belongs to no slot.
pub const SCRATCH: usize = 8192;

/// Functions that the library calls back. They do nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Callback {
    Visitor,
    Event,
    Stack,
    Overdraw,
    Shortage,
    Progress,
    FreeUser,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// A number, as the type that the header gives.
    Num(u64),
    Real(f64),
    /// The value in a slot, plus bytes.
    Slot(Kind, usize, u64),
    /// The slot for a result of the call.
    Out(Kind, usize),
    /// A place for any other result; for a structure, its first 4 bytes are set to the size.
    Scratch(u32),
    Null,
    Text(String),
    /// A structure: its type, and the fields that are not 0.
    Struct(String, Vec<(String, Arg)>),
    Array(&'static str, Vec<Arg>),
    Callback(Callback),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// A call. If the function returns memory, the slot for it comes after the arguments.
    Call { function: String, args: Vec<Arg> },
    /// Fills a block with a byte, in the order of its stream; nothing if the slot has no live block
    /// of that size.
    Fill { slot: usize, bytes: u64, value: u8 },
    /// Checks that the block still has its last fill.
    Verify { slot: usize },
    /// Exchanges memory with another thread, or a later moment.
    Swap { slot: usize, at: usize },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub seed: u64,
    /// Settings of the environment.
    pub settings: Vec<(&'static str, String)>,
    pub threads: Vec<Vec<Op>>,
}

impl Program {
    pub fn len(&self) -> usize {
        self.threads.iter().map(Vec::len).sum()
    }
}
