# Arenas, which follow tasks.

"""
    Arena

Allocations that end together. [`with_arena`](@ref) makes an arena and ends it. Without a block,
call [`enter!`](@ref), [`in_arena`](@ref) and [`exit!`](@ref) or [`abort!`](@ref). An arena belongs
to no thread: a task that Julia moves to another thread stays in it. `open` reflects only what was
done through this object; [`current_arena`](@ref) returns another object for the same arena.
"""
mutable struct Arena
    handle::Ptr{Cvoid}
    name::String
    open::Bool
end

"""
What the end of an arena did. `freed` and `kept` are counts of allocations; `freed_bytes` and
`kept_bytes` are as asked for. `unknown`, `duplicate` and `foreign` count entries of the keep list
that changed nothing. `depth` is how many arenas enclosed it, `nanoseconds` how long it was open.
"""
struct ArenaReport
    size::UInt32
    depth::UInt32
    freed::UInt64
    freed_bytes::UInt64
    kept::UInt64
    kept_bytes::UInt64
    unknown::UInt64
    duplicate::UInt64
    foreign::UInt64
    nanoseconds::UInt64
end

"""
A snapshot of an open arena, from [`arena_stats`](@ref): counts of allocations, bytes as asked for,
and `name` as a string.
"""
struct ArenaStats
    size::UInt32
    depth::UInt32
    live::UInt64
    live_bytes::UInt64
    peak_bytes::UInt64
    joined::UInt64
    left::UInt64
    promoted::UInt64
    freed_early::UInt64
    threads::UInt64
    nanoseconds::UInt64
    id::UInt64
    name_bytes::NTuple{64,UInt8}
end

function Base.getproperty(s::ArenaStats, field::Symbol)
    field === :name || return getfield(s, field)
    bytes = collect(getfield(s, :name_bytes))
    return String(bytes[1:something(findfirst(iszero, bytes), 65)-1])
end

# A structure of the library's, filled by a call: its first field says how large it is.
function filled(call, ::Type{T}) where {T}
    out = Ref{T}()
    GC.@preserve out begin
        p = Base.unsafe_convert(Ptr{T}, out)
        ccall(:memset, Ptr{Cvoid}, (Ptr{Cvoid}, Cint, Csize_t), p, 0, sizeof(T))
        unsafe_store!(Ptr{UInt32}(p), UInt32(sizeof(T)))
        ok(call(Ptr{Cvoid}(p)))
    end
    return out[]
end

# Calls `f` with an arena as the thread's current one. Neither this nor `f` may yield: the thread
# would stay attached under whatever task comes next on it. Does nothing where it is the current one
# already, or NULL.
function on_thread(f, handle::Ptr{Cvoid})
    now = Ref{Ptr{Cvoid}}(C_NULL)
    ok(GC.@preserve now C.arena_current_get(Base.unsafe_convert(Ptr{Ptr{Cvoid}}, now)))
    (handle == C_NULL || now[] == handle) && return f()
    ok(C.arena_attach(handle))
    try
        return f()
    finally
        ok(C.arena_detach(handle))
    end
end

"""
    enter!(name = "") -> Arena

Opens an arena inside the task's current one, if it has one. The current arena does not change: use
[`in_arena`](@ref) to allocate in the new one. End it with [`exit!`](@ref) or [`abort!`](@ref). The
name is for statistics and error texts; it is cut at 63 bytes.
"""
function enter!(name::AbstractString = "")
    text, out = String(name), Ref{Ptr{Cvoid}}(C_NULL)
    on_thread(current_handle(:gpumem_arenas)) do
        GC.@preserve text out begin
            ok(C.arena_enter_named(isempty(text) ? Ptr{UInt8}(C_NULL) : pointer(text), Base.unsafe_convert(Ptr{Ptr{Cvoid}}, out)))
        end
        ok(C.arena_detach(out[]))
    end
    return Arena(out[], text, true)
end

"""
    exit!(arena, keep = DeviceBuffer[]) -> ArenaReport

Ends an arena: frees everything allocated in it, even if something still refers to it, except
`keep`. Kept allocations move to the enclosing arena, or become ordinary where there is none.
Entries are buffers, or addresses (`Ptr`) inside one; the report counts entries that name nothing in
this arena. Throws, and leaves the arena open, while an arena inside it is open or a thread is
attached.
"""
function exit!(arena::Arena, keep = DeviceBuffer[])
    entries = collect(Any, keep)
    # Something else may be where a buffer that is gone was; nothing is at 1, which counts as
    # unknown.
    place(entry) = entry isa Ptr ? Ptr{Cvoid}(entry) : islive(entry) ? address(entry) : Ptr{Cvoid}(1)
    addresses = Ptr{Cvoid}[place(entry) for entry in entries]
    report = GC.@preserve entries addresses begin
        ok(C.arena_attach(arena.handle))
        try
            filled(p -> C.arena_exit(arena.handle, pointer(addresses), length(addresses), p), ArenaReport)
        catch
            C.arena_detach(arena.handle)
            rethrow()
        end
    end
    arena.open = false
    return report
end

"""
    abort!(arena) -> ArenaReport

Ends an arena and all open arenas inside it, keeping nothing. The report covers all of them.
"""
function abort!(arena::Arena)
    report = filled(p -> C.arena_abort(arena.handle, p), ArenaReport)
    arena.open = false
    return report
end

"""
    in_arena(f, arena)

Calls `f`; the task's allocations meanwhile are in `arena`. Any number of tasks may be in one arena,
on any threads: this is how a task spawned inside [`with_arena`](@ref) takes part. It must finish
allocating before the arena ends; a later allocation is refused.
"""
in_arena(f, arena::Arena) = with_handle(f, :gpumem_arenas, arena.handle)

"""
    attached(f, arena)

Calls `f` with the arena attached to the thread, for foreign code that allocates on its own. `f`
must not yield: no locks, no input or output, no waiting for tasks. Not for [`DeviceBuffer`](@ref),
which follows the task.
"""
attached(f, arena::Arena) = on_thread(f, arena.handle)

"""
    current_arena() -> Union{Arena,Nothing}

Returns the arena that the current task allocates in. The object is not the one that
[`enter!`](@ref) or [`with_arena`](@ref) gave, but it names the same arena and may end it.
"""
function current_arena()
    handle = current_handle(:gpumem_arenas)
    return handle == C_NULL ? nothing : Arena(handle, arena_name(handle), true)
end

arena_name(handle::Ptr{Cvoid}) = filled(p -> C.arena_stats_get(handle, p), ArenaStats).name

"""
    kept(result)

Returns the buffers in a block's result, which [`with_arena`](@ref) keeps: a buffer, or those in
tuples, named tuples, pairs, arrays, sets, dictionaries (keys too) and `Ref`s, at any depth. It
looks into nothing else: add a method for types of your own.
"""
kept(::Any) = DeviceBuffer[]
kept(b::DeviceBuffer) = DeviceBuffer[b]

function kept(several::Union{Tuple,NamedTuple,Pair,Base.RefValue,AbstractArray,AbstractSet,AbstractDict})
    found = DeviceBuffer[]
    isbitstype(eltype(several)) && return found
    # The containers around this one; what contains itself is looked into once.
    around = get!(() -> Base.IdSet{Any}(), task_local_storage(), :gpumem_kept)::Base.IdSet{Any}
    several in around && return found
    push!(around, several)
    try
        foreach(one -> append!(found, kept(one)), elements(several))
    finally
        delete!(around, several)
    end
    return found
end

elements(several) = several
elements(p::Pair) = (p.first, p.second)
elements(r::Base.RefValue) = isassigned(r) ? (r[],) : ()
elements(a::AbstractArray) = (a[i] for i in LinearIndices(a) if isassigned(a, i))

"""
    with_arena(f; keep = kept, name = "")

Calls `f(arena)` in a new arena inside the task's current one, and ends it: everything that the task
allocated in it is freed, even if something still refers to it, except the buffers `keep(result)`.
Returns what `f` returned. Does nothing more if `f` has ended the arena itself.

    loss = with_arena(name = "step") do arena
        ...
        loss_buffer
    end

By default what `f` returned is kept ([`kept`](@ref)). After an exception nothing is kept, arenas
inside are ended too, and the exception goes on. Only where another thread is attached the arena
stays open: [`abort!`](@ref) it later. A buffer that was not kept stays as an object:
[`islive`](@ref) is false, its uses are errors, its finalizer does nothing.
"""
function with_arena(f; keep = kept, name::AbstractString = "")
    arena = enter!(name)
    try
        result = with_handle(() -> f(arena), :gpumem_arenas, arena.handle)
        ended(arena) || exit!(arena, keep(result))
        return result
    catch
        # Also where the exit was refused: the block's arena ends with the block. It stays open
        # where a thread is attached; what was thrown first matters more.
        try
            ended(arena) || abort!(arena)
        catch
        end
        rethrow()
    end
end

# Whether an arena has ended, by way of whichever object.
function ended(arena::Arena)
    arena.open || return true
    try
        arena_stats(arena)
    catch e
        e isa GpumemError && e.status == INVALID || rethrow()
        arena.open = false
    end
    return !arena.open
end

"""
    escape!(buffer)

Takes a buffer out of all arenas, for example a constant made in one step and cached for later ones.
"""
escape!(b::DeviceBuffer) = (check(b, "escape!", "buffer"); GC.@preserve b ok(C.arena_escape(b.ptr)))

"""
    promote!(buffer)

Moves a buffer to the enclosing arena now, or out of all arenas where there is none, as an exit does
with what it keeps.
"""
promote!(b::DeviceBuffer) = (check(b, "promote!", "buffer"); GC.@preserve b ok(C.arena_promote(b.ptr)))

"""
    arena_stats(arena) -> ArenaStats

What has happened in an open arena so far.
"""
arena_stats(arena::Arena) = filled(p -> C.arena_stats_get(arena.handle, p), ArenaStats)

Base.show(io::IO, a::Arena) = print(io, "Arena(", isempty(a.name) ? "" : repr(a.name) * ", ", a.open ? "open)" : "ended)")

function Base.show(io::IO, r::ArenaReport)
    print(io, "ArenaReport(freed ", Int(r.freed), " of ", human(r.freed_bytes), ", kept ", Int(r.kept), " of ", human(r.kept_bytes))
    for field in (:unknown, :duplicate, :foreign)
        getfield(r, field) > 0 && print(io, ", ", Int(getfield(r, field)), " ", field)
    end
    print(io, ")")
end

function Base.show(io::IO, s::ArenaStats)
    print(io, "ArenaStats(", isempty(s.name) ? "" : repr(s.name) * ", ", "live ", Int(s.live), " of ", human(s.live_bytes))
    print(io, ", peak ", human(s.peak_bytes), ", ", Int(s.joined), " joined, ", Int(s.left), " left)")
end
