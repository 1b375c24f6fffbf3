# Buffers.

"""
    DeviceBuffer(bytes; stream = Gpumem.default_stream)
    DeviceBuffer(array; stream = Gpumem.default_stream)

Allocates `bytes` of device memory, not cleared and aligned to 256 bytes, or a copy of an array of
plain data. Work submitted to `stream` from now on may use it.

It is freed once, by whichever comes first: [`free!`](@ref), the end of the arena that was current
for the task ([`with_arena`](@ref)), or the garbage collector. Each frees by the allocation's
number, so none can free something else that lives at the address by then. Using it afterwards
throws a [`GpumemError`](@ref). `length` and `sizeof` are in bytes.

`copyto!` copies between buffers, and from and to arrays; `fill!` fills with a byte;
`Vector{T}(buffer)` is a copy on the host. Copies from and to arrays wait until they are done; the
others are in the order of a stream and do not wait.

Throws `GPUMEM_ERROR_OUT_OF_MEMORY` when there is no memory. Calling `GC.gc()` first may help;
gpumem does not do it.
"""
mutable struct DeviceBuffer
    ptr::Ptr{Cvoid}
    bytes::Int
    id::UInt64
    # A default stream with its device, which need not be current when it is next used.
    stream::Stream
    # Only spares a second call. Whether memory is freed is decided by its number, inside of the
    # library, so it does no harm that two tasks may both see `false`.
    freed::Bool

    function DeviceBuffer(bytes::Integer; stream::Stream = default_stream)
        bytes >= 0 || throw(ArgumentError("a buffer of $bytes bytes"))
        ptr, id, own = on(s -> (allocate(Csize_t(bytes), s)..., s), stream)
        return finalizer(finalize_buffer, new(ptr, bytes, id, own, false))
    end
end

# gpumem_malloc_options, as far as it is used here.
struct MallocOptions
    size::UInt32
    flags::UInt32
    bytes::Csize_t
    alignment::Csize_t
    stream::Ptr{Cvoid}
    tag::UInt64
    arena::Ptr{Cvoid}
    device::Int32
    reserved::UInt32
    reservation::Ptr{Cvoid}
end

# Memory for the current task, and its number: in its arena and drawn from its reservation. Both are
# named to the library instead of attached to the thread, as the task may be on another thread by
# the next call, and other tasks on this one.
function allocate(bytes::Csize_t, stream::Stream)
    arena, reservations = current_handle(:gpumem_arenas), handles(:gpumem_reservations)
    out, id = Ref{Ptr{Cvoid}}(C_NULL), Ref{UInt64}(0)
    GC.@preserve out begin
        at = Base.unsafe_convert(Ptr{Ptr{Cvoid}}, out)
        plain = arena == C_NULL && isempty(reservations)
        ok(plain ? C.malloc_async(bytes, stream.handle, at) : malloc_with(bytes, stream, arena, reservations, at))
    end
    status = GC.@preserve id C.allocation_id_get(out[], Base.unsafe_convert(Ptr{UInt64}, id))
    if status != OK
        text = last_error()
        C.free_async(out[], stream.handle)
        throw(GpumemError(status, text))
    end
    return out[], id[]
end

# Draws from the innermost reservation of the stream's device; where there is none, from none. Of
# which device a stream is the library knows, and refuses another device's reservation.
function malloc_with(bytes::Csize_t, stream::Stream, arena::Ptr{Cvoid}, reservations::Vector{Ptr{Cvoid}}, at::Ptr{Ptr{Cvoid}})
    call(reservation) = begin
        options = Ref(MallocOptions(sizeof(MallocOptions), 0, bytes, 0, stream.handle, 0, arena, 0, 0, reservation))
        GC.@preserve options C.malloc_with(Base.unsafe_convert(Ptr{Cvoid}, Base.unsafe_convert(Ptr{MallocOptions}, options)), at)
    end
    for reservation in Iterators.reverse(reservations)
        status = call(reservation)
        status == INVALID || return status
        # Throws where it was refused because it has been released.
        filled(p -> C.reservation_info_get(reservation, p), ReservationInfo)
    end
    return call(C_NULL)
end

# What a task has none of. Nothing is ever pushed to it.
const no_handles = Ptr{Cvoid}[]

# The current task's handles of a kind, the innermost last.
@inline function handles(kind::Symbol)
    storage = current_task().storage
    storage === nothing && return no_handles
    return get(storage::IdDict, kind, no_handles)::Vector{Ptr{Cvoid}}
end

# The innermost of them; NULL when there is none.
@inline function current_handle(kind::Symbol)
    all = handles(kind)
    return isempty(all) ? C_NULL : all[end]
end

# Calls `f` with a handle as the task's innermost one of its kind.
function with_handle(f, kind::Symbol, handle::Ptr{Cvoid})
    stack = get!(() -> Ptr{Cvoid}[], task_local_storage(), kind)::Vector{Ptr{Cvoid}}
    push!(stack, handle)
    try
        return f()
    finally
        pop!(stack)
    end
end

# What the collector calls, on any thread: never waits, never throws, never yields.
function finalize_buffer(b::DeviceBuffer)
    b.freed && return
    b.freed = true
    C.free_id(b.ptr, b.id)
    return
end

# Keeps a buffer for as long as an object lives that uses its memory. A closure given to `finalizer`
# does not: what it refers to may be finalized in the same collection as the object, or before. So
# the buffer hangs in a global, from which the object's finalizer takes it.
const held_buffers = IdDict{Base.RefValue{DeviceBuffer},Nothing}()
# A spin lock, as finalizers may only try.
const held_lock = Threads.SpinLock()

struct LetGo
    entry::Base.RefValue{DeviceBuffer}
end

function hold!(owner, b::DeviceBuffer)
    entry = Ref(b)
    lock(() -> (held_buffers[entry] = nothing), held_lock)
    return finalizer(LetGo(entry), owner)
end

function (f::LetGo)(owner)
    # It may have interrupted the thread that holds the lock: the next collection tries again.
    trylock(held_lock) || (finalizer(f, owner); return)
    try
        delete!(held_buffers, f.entry)
    finally
        unlock(held_lock)
    end
    return
end

function DeviceBuffer(array::DenseArray{T}; stream::Stream = default_stream) where {T}
    b = DeviceBuffer(sizeof(array); stream = stream)
    return copyto!(b, array; stream = stream)
end

"""
    free!(buffer; stream = nothing)

Frees a buffer in the order of `stream`, by default the stream it was allocated on. Does not wait.
Does nothing when the buffer is gone already, by an earlier `free!` or by the end of its arena.
"""
function free!(b::DeviceBuffer; stream::Union{Nothing,Stream} = nothing)
    b.freed && return
    stream === nothing ? ok(C.free_id(b.ptr, b.id)) : on(s -> ok(C.free_id_async(b.ptr, b.id, s.handle)), stream)
    b.freed = true
    return
end

"""
    islive(buffer) -> Bool

Whether the buffer's memory is still live: neither freed nor ended with an arena. It stays `false`
when another allocation gets the address.
"""
function islive(b::DeviceBuffer)
    b.freed && return false
    id = Ref{UInt64}(0)
    status = GC.@preserve b id C.allocation_id_get(b.ptr, Base.unsafe_convert(Ptr{UInt64}, id))
    return status == OK && id[] == b.id
end

"""
    address(buffer) -> Ptr{Cvoid}

The device address, for foreign calls. The host must not read it. Keep the buffer alive with
`GC.@preserve` for as long as the address is used.
"""
address(b::DeviceBuffer) = b.ptr
Base.pointer(b::DeviceBuffer) = Ptr{UInt8}(b.ptr)
Base.unsafe_convert(::Type{Ptr{T}}, b::DeviceBuffer) where {T} = Ptr{T}(b.ptr)

"""
    allocation_id(buffer) -> UInt64

A number that no other allocation of this process has had or will have.
"""
allocation_id(b::DeviceBuffer) = b.id

Base.deepcopy_internal(::DeviceBuffer, ::IdDict) = throw(ArgumentError("deepcopy of a DeviceBuffer would give its memory " *
    "a second owner: allocate another buffer and copyto! it"))

Base.length(b::DeviceBuffer) = b.bytes
Base.sizeof(b::DeviceBuffer) = b.bytes

"""
    check(buffer, op = "use", operand = "buffer")

Throws unless the buffer may be used. With `GPUMEM_ARENA_DEBUG=check` the text names the arena that
freed it: `use-after-arena-free: add lhs was reclaimed by arena_exit at depth 0 (arena 7 "step",
...)`.
"""
function check(b::DeviceBuffer, op::AbstractString = "use", operand::AbstractString = "buffer")
    op_text, operand_text = String(op), String(operand)
    GC.@preserve b op_text operand_text begin
        ok(C.check_id(b.ptr, b.id, Base.unsafe_convert(Cstring, op_text), Base.unsafe_convert(Cstring, operand_text)))
    end
    islive(b) || throw(GpumemError(USE_AFTER_FREE, "$op $operand is no longer allocated: it was freed, or the arena of its " *
        "allocation has ended without keeping it (GPUMEM_ARENA_DEBUG=check names the arena)"))
    return
end

function check_range(b::DeviceBuffer, offset::Integer, bytes::Integer, op::String, operand::String)
    0 <= offset <= b.bytes && 0 <= bytes <= b.bytes - offset ||
        throw(ArgumentError("$op: $bytes bytes from offset $offset of $operand, which has $(b.bytes)"))
    check(b, op, operand)
end

"""
    record_stream!(buffer, stream)

Announces that `stream` uses the buffer too, for kernels on another stream than the buffer's own.
Once the buffer is freed, its memory is reused only after the work that `stream` has by then. Call
it before or after submitting the work; once per stream is enough. `copyto!` and `fill!` announce
their stream themselves. The stream must stay alive until the buffer is gone.
"""
function record_stream!(b::DeviceBuffer, stream::Stream)
    check(b, "record_stream!", "buffer")
    GC.@preserve b on(s -> ok(C.record_stream(b.ptr, s.handle)), stream)
    return b
end

# Before work on a buffer is submitted: were it announced after and that refused, the work would be
# queued all the same. True where nothing can be announced (GPUMEM_POOL=off): then the use has to be
# over before the buffer may be freed, so the caller waits. The stream is from `on`: default streams
# of two devices differ.
function announce(b::DeviceBuffer, stream::Stream)
    # CUDA's handle of the thread's own stream names another stream on each thread.
    stream == b.stream && stream.handle != Ptr{Cvoid}(2) && return false
    status = C.record_stream(b.ptr, stream.handle)
    status == UNSUPPORTED && return true
    ok(status)
    return false
end

# A copy that has to be over before the host's memory may move or go. So is its use of the buffer:
# there is nothing to announce. CUDA's copy of pageable memory, as arrays are, waits itself.
function copy_and_wait(dst::Ptr{Cvoid}, src::Ptr{Cvoid}, bytes::Int, stream::Stream)
    bytes == 0 && return
    on(stream) do s
        ok(waiting(() -> C.memcpy_async(dst, src, bytes, s.handle), C.address_of_memcpy_async, :gpumem_memcpy_async))
        synchronize(s)
    end
end

"""
    copyto!(buffer, array; offset = 0, stream)
    copyto!(array, buffer; offset = 0, stream)
    copyto!(destination, source; destination_offset = 0, source_offset = 0, bytes, stream)

Copies an array of plain data to or from a buffer, from `offset` bytes on, and waits; or copies
between two buffers, in the order of `stream`. The default is the buffer's own stream; for two
buffers, the destination's. First wait for the work that the source's stream has not done yet. A
buffer may be freed right after the call: its memory is reused when the copy is done. For that, a
`stream` that is not the buffer's own must stay alive until the buffer is gone. While the stream is
being captured only copies between buffers are legal.
"""
function Base.copyto!(b::DeviceBuffer, array::DenseArray{T}; offset::Integer = 0, stream::Stream = b.stream) where {T}
    isbitstype(T) || throw(ArgumentError("elements of type $T are no plain data"))
    check_range(b, offset, sizeof(array), "copyto!", "destination")
    GC.@preserve b array copy_and_wait(b.ptr + offset, Ptr{Cvoid}(pointer(array)), sizeof(array), stream)
    return b
end

function Base.copyto!(array::DenseArray{T}, b::DeviceBuffer; offset::Integer = 0, stream::Stream = b.stream) where {T}
    isbitstype(T) || throw(ArgumentError("elements of type $T are no plain data"))
    check_range(b, offset, sizeof(array), "copyto!", "source")
    GC.@preserve b array copy_and_wait(Ptr{Cvoid}(pointer(array)), b.ptr + offset, sizeof(array), stream)
    return array
end

function Base.copyto!(dst::DeviceBuffer, src::DeviceBuffer; destination_offset::Integer = 0, source_offset::Integer = 0,
                      bytes::Integer = min(dst.bytes - destination_offset, src.bytes - source_offset),
                      stream::Stream = dst.stream)
    check_range(dst, destination_offset, bytes, "copyto!", "destination")
    check_range(src, source_offset, bytes, "copyto!", "source")
    GC.@preserve dst src on(stream) do s
        wait = announce(dst, s) | announce(src, s)
        ok(C.memcpy_async(dst.ptr + destination_offset, src.ptr + source_offset, bytes, s.handle))
        wait && synchronize(s)
    end
    return dst
end

"""
    fill!(buffer, byte; offset = 0, bytes = length(buffer) - offset, stream)

Fills the buffer with a byte in the order of a stream, by default its own. Does not wait. Another
stream must stay alive until the buffer is gone.
"""
function Base.fill!(b::DeviceBuffer, byte::Integer; offset::Integer = 0, bytes::Integer = b.bytes - offset,
                    stream::Stream = b.stream)
    check_range(b, offset, bytes, "fill!", "buffer")
    value = UInt8(byte)
    GC.@preserve b on(stream) do s
        wait = announce(b, s)
        ok(C.memset_async(b.ptr + offset, value, bytes, s.handle))
        wait && synchronize(s)
    end
    return b
end

"""
    Vector{T}(buffer; stream)
    Array(buffer; stream)

Returns a copy of the buffer's contents as elements of plain data, as many as fit whole; bytes by
default. Waits until the copy is done.
"""
Base.Vector{T}(b::DeviceBuffer; stream::Stream = b.stream) where {T} =
    copyto!(Vector{T}(undef, b.bytes ÷ sizeof(T)), b; stream = stream)
Base.Array(b::DeviceBuffer; stream::Stream = b.stream) = Vector{UInt8}(b; stream = stream)

# 4096 as "4 KiB", 1000 as "1000 B".
function human(bytes::Integer)
    units, value, unit = ("B", "KiB", "MiB", "GiB", "TiB"), float(bytes), 1
    while value >= 1024 && unit < length(units)
        value, unit = value / 1024, unit + 1
    end
    return isinteger(value) ? "$(Int(value)) $(units[unit])" : "$(round(value; digits = 1)) $(units[unit])"
end

function Base.show(io::IO, b::DeviceBuffer)
    print(io, "DeviceBuffer(", human(b.bytes), " at 0x", string(UInt(b.ptr); base = 16), ", id ", Int(b.id))
    print(io, islive(b) ? ")" : ", gone)")
end
