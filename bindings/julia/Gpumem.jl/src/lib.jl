# Finding and calling the library.

"""
    GpumemError(status, text)

An error from the library. `status` is its number (`GPUMEM_ERROR_*`); `text` says what was asked,
what there was, and, where that is not plain, what to do next. Compare statuses, not texts. `Gpumem.status_name(status)`
returns the name.
"""
struct GpumemError <: Exception
    status::Int32
    text::String
end

const OK = Int32(0)
const INVALID = Int32(1)
const OUT_OF_MEMORY = Int32(2)
const UNKNOWN_POINTER = Int32(3)
const DOUBLE_FREE = Int32(4)
const UNSUPPORTED = Int32(7)
const CONFIG = Int32(8)
const USE_AFTER_FREE = Int32(14)
const TIMED_OUT = Int32(15)

function Base.showerror(io::IO, e::GpumemError)
    print(io, "GpumemError: ", status_name(e.status), ": ", e.text)
end

# The loaded library, NULL before. Written under the lock, and then never again.
const loaded = Ref{Ptr{Cvoid}}(C_NULL)
const loading = ReentrantLock()

# The preference `library`, where Julia has preferences (1.6 and newer); they are read without
# another package.
function preferred_library()
    isdefined(Base, :get_preferences) || return ""
    here = Base.PkgId(@__MODULE__).uuid
    here === nothing && return ""
    return string(get(Base.get_preferences(here), "library", ""))
end

# Every place that the library may be in: the path, and who named it. The first that is named
# counts, and no other.
function library_path()
    path = get(ENV, "GPUMEM_LIBRARY", "")
    isempty(path) || return path, "GPUMEM_LIBRARY"
    path = preferred_library()
    isempty(path) || return path, "the preference \"library\" of Gpumem"
    found = Libdl.find_library(["libgpumem.so.0", "libgpumem"])
    return found, "the loader's path"
end

"""
    Gpumem.library() -> Ptr

Returns the handle of libgpumem, loading it if need be. Throws if it is not found, and says where it
was looked for.
"""
function library()
    loaded[] == C_NULL || return loaded[]
    lock(loading) do
        loaded[] == C_NULL || return
        path, origin = library_path()
        isempty(path) && throw(GpumemError(CONFIG, "libgpumem is not on the loader's path: set GPUMEM_LIBRARY to the path " *
            "of libgpumem.so (`make build` puts it in target/release/), or the preference \"library\" of Gpumem"))
        handle = dlopen(path; throw_error = false)
        handle === nothing && throw(GpumemError(CONFIG, "libgpumem cannot be loaded from \"$path\", which $origin names: " *
            "build it with `make build`, or set GPUMEM_LIBRARY to the path of libgpumem.so"))
        loaded[] = handle
    end
    return loaded[]
end

# The address of a function of the library, kept in `slot`. Two threads that both look it up store
# the same.
@noinline function resolve!(slot::Ref{Ptr{Cvoid}}, name::Symbol)
    found = dlsym(library(), name; throw_error = false)
    found === nothing && throw(GpumemError(UNSUPPORTED, "this libgpumem has no $name; it is older than this package"))
    slot[] = found
    return found
end

# @api name(T1, T2)::R defines Gpumem.C.name, which calls gpumem_name.
macro api(signature)
    call, result = signature.args[1], signature.args[2]
    name, types = call.args[1], call.args[2:end]
    symbol, slot = Symbol(:gpumem_, name), Symbol(:address_of_, name)
    args = [Symbol(:a, i) for i in 1:length(types)]
    quote
        const $slot = Ref{Ptr{Cvoid}}(C_NULL)
        @inline function $name($(args...))
            f = $slot[]
            f == C_NULL && (f = resolve!($slot, $(QuoteNode(symbol))))
            return ccall(f, $result, ($(types...),), $(args...))
        end
    end |> esc
end

# The library's functions as they are: no checks, statuses as numbers.
module C
import ..Gpumem: @api, resolve!

const Handle = Ptr{Cvoid}

@api last_error(Ptr{UInt8}, Csize_t)::Csize_t
@api last_status()::Int32
@api status_name(Int32)::Cstring
@api version_string()::Cstring
@api backend_name()::Cstring
@api malloc_async(Csize_t, Handle, Ptr{Handle})::Int32
@api malloc_with(Ptr{Cvoid}, Ptr{Handle})::Int32
@api free_async(Handle, Handle)::Int32
@api free_id(Handle, UInt64)::Int32
@api free_id_async(Handle, UInt64, Handle)::Int32
@api allocation_id_get(Handle, Ptr{UInt64})::Int32
@api check_id(Handle, UInt64, Cstring, Cstring)::Int32
@api memcpy_async(Handle, Handle, Csize_t, Handle)::Int32
@api memset_async(Handle, Cint, Csize_t, Handle)::Int32
@api record_stream(Handle, Handle)::Int32
@api stream_create(Ptr{Handle})::Int32
@api stream_destroy(Handle)::Int32
@api stream_sync(Handle)::Int32
@api device_get(Ptr{Cint})::Int32
@api device_set(Cint)::Int32
@api device_limit_set(Cint, Csize_t)::Int32
@api arena_enter_named(Ptr{UInt8}, Ptr{Handle})::Int32
@api arena_exit(Handle, Ptr{Handle}, Csize_t, Ptr{Cvoid})::Int32
@api arena_abort(Handle, Ptr{Cvoid})::Int32
@api arena_attach(Handle)::Int32
@api arena_detach(Handle)::Int32
@api arena_current_get(Ptr{Handle})::Int32
@api arena_find(Handle, Ptr{Handle})::Int32
@api arena_promote(Handle)::Int32
@api arena_escape(Handle)::Int32
@api arena_stats_get(Handle, Ptr{Cvoid})::Int32
@api capture_begin(Handle, Ptr{Cvoid}, Ptr{Handle})::Int32
@api capture_end(Handle)::Int32
@api capture_abort(Handle)::Int32
@api capture_retain(Handle)::Int32
@api capture_release(Handle)::Int32
@api reserve(Ptr{Cvoid}, Ptr{Handle})::Int32
@api reservation_release(Handle, Ptr{UInt64})::Int32
@api reservation_info_get(Handle, Ptr{Cvoid})::Int32
@api stats_get(Cint, Ptr{Cvoid})::Int32
@api trim(Csize_t)::Int32
@api validate()::Int32
end

"The name of a status, such as \"GPUMEM_ERROR_INVALID\"; its number where the library cannot be loaded."
function status_name(status::Integer)
    known = loaded[] != C_NULL && dlsym(loaded[], :gpumem_status_name; throw_error = false) !== nothing
    return known ? unsafe_string(C.status_name(status)) : "status $status"
end

"The library's version, such as v\"0.1.0\"."
version() = VersionNumber(unsafe_string(C.version_string()))

"The kind of device in use, \"cuda\" or \"host\"; \"none\" when the library cannot start."
backend() = unsafe_string(C.backend_name())

# The text of the thread's last failure. The task must not have yielded since: it might be on
# another thread.
function last_error()
    text = Vector{UInt8}(undef, 1024)
    length = GC.@preserve text C.last_error(pointer(text), sizeof(text))
    return String(text[1:min(length, sizeof(text) - 1)])
end

@noinline fail(status::Int32) = throw(GpumemError(status, last_error()))

# Throws unless a call succeeded.
@inline ok(status::Int32) = (status == OK || fail(status); nothing)

# Makes a call that may wait, and lets the collector run meanwhile: a thread that waits inside of a
# foreign function would otherwise stop every thread at its next collection, also the one that is
# waited for. `f` makes the call of `name`, whose address `slot` has, and must not allocate.
@inline function waiting(f, slot::Ref{Ptr{Cvoid}}, name::Symbol)
    slot[] == C_NULL && resolve!(slot, name)
    state = ccall(:jl_gc_safe_enter, Int8, ())
    status = f()
    ccall(:jl_gc_safe_leave, Cvoid, (Int8,), state)
    return status
end
