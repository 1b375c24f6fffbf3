/-!
The functions of `c/gpumem_lean.c` as they are: handles are numbers, and structures are arrays of
numbers. The other modules build the API on them.

Everything is in `IO`, even what only reads: Lean may evaluate a pure function early, late, once for
two calls, or never.
-/
namespace Gpumem.Raw

opaque BufferPointed : NonemptyType.{0}

/-- Device memory: an external object that holds an address and the allocation's number. -/
def Buffer : Type := BufferPointed.type

instance : Nonempty Buffer := BufferPointed.property

@[extern "gpumem_lean_initialize"] opaque initializeClasses : IO Unit

initialize initializeClasses

@[extern "gpumem_lean_buffer_alloc"] opaque bufferAlloc (bytes : USize) (stream : UInt64) : IO Buffer
@[extern "gpumem_lean_buffer_release"] opaque bufferRelease (b : @& Buffer) : IO Unit
@[extern "gpumem_lean_buffer_release_on"] opaque bufferReleaseOn (b : @& Buffer) (stream : UInt64) : IO Unit
@[extern "gpumem_lean_buffer_is_live"] opaque bufferIsLive (b : @& Buffer) : IO Bool
@[extern "gpumem_lean_buffer_addr"] opaque bufferAddr (b : @& Buffer) : IO UInt64
@[extern "gpumem_lean_buffer_id"] opaque bufferId (b : @& Buffer) : IO UInt64
@[extern "gpumem_lean_buffer_bytes"] opaque bufferBytes (b : @& Buffer) : IO USize
@[extern "gpumem_lean_buffer_check"] opaque bufferCheck (b : @& Buffer) (op operand : @& String) : IO Unit

/-- In place of a stream's handle: the buffer's own, a copy's destination's. -/
def ownStream : UInt64 := 0xffffffffffffffff

@[extern "gpumem_lean_buffer_fill"]
opaque bufferFill (b : @& Buffer) (byte : UInt8) (offset bytes : USize) (stream : UInt64) : IO Unit
@[extern "gpumem_lean_buffer_copy"]
opaque bufferCopy (to source : @& Buffer) (toOffset fromOffset bytes : USize) (stream : UInt64) : IO Unit
@[extern "gpumem_lean_buffer_upload"]
opaque bufferUpload (b : @& Buffer) (data : @& ByteArray) (offset : USize) (stream : UInt64) : IO Unit
@[extern "gpumem_lean_buffer_upload_floats"]
opaque bufferUploadFloats (b : @& Buffer) (data : @& FloatArray) (offset : USize) (stream : UInt64) : IO Unit
@[extern "gpumem_lean_buffer_download"]
opaque bufferDownload (b : @& Buffer) (offset count : USize) (stream : UInt64) : IO ByteArray
@[extern "gpumem_lean_buffer_download_floats"]
opaque bufferDownloadFloats (b : @& Buffer) (offset count : USize) (stream : UInt64) : IO FloatArray
@[extern "gpumem_lean_buffer_record"] opaque bufferRecord (b : @& Buffer) (stream : UInt64) : IO Unit
@[extern "gpumem_lean_buffer_escape"] opaque bufferEscape (b : @& Buffer) : IO Unit
@[extern "gpumem_lean_buffer_promote"] opaque bufferPromote (b : @& Buffer) : IO Unit
@[extern "gpumem_lean_buffer_arena"] opaque bufferArena (b : @& Buffer) : IO UInt64
@[extern "gpumem_lean_free_address"] opaque freeAddress (address : UInt64) : IO Unit

@[extern "gpumem_lean_stream_create"] opaque streamCreate : IO UInt64
@[extern "gpumem_lean_stream_destroy"] opaque streamDestroy (stream : UInt64) : IO Unit
@[extern "gpumem_lean_stream_sync"] opaque streamSync (stream : UInt64) : IO Unit

@[extern "gpumem_lean_arena_enter"] opaque arenaEnter (name : @& String) : IO UInt64
@[extern "gpumem_lean_arena_exit"]
opaque arenaExit (arena : UInt64) (keep : @& Array Buffer) (addresses : @& Array UInt64) : IO (Array UInt64)
@[extern "gpumem_lean_arena_abort"] opaque arenaAbort (arena : UInt64) : IO (Array UInt64)
@[extern "gpumem_lean_arena_attach"] opaque arenaAttach (arena : UInt64) : IO Unit
@[extern "gpumem_lean_arena_detach"] opaque arenaDetach (arena : UInt64) : IO Unit
@[extern "gpumem_lean_arena_leave"] opaque arenaLeave (before : UInt64) : IO Unit
@[extern "gpumem_lean_arena_current"] opaque arenaCurrent : IO UInt64
@[extern "gpumem_lean_arena_stats"] opaque arenaStats (arena : UInt64) : IO (Array UInt64)
@[extern "gpumem_lean_arena_name"] opaque arenaName (arena : UInt64) : IO String

@[extern "gpumem_lean_capture_begin"] opaque captureBegin (stream : UInt64) : IO UInt64
@[extern "gpumem_lean_capture_end"] opaque captureEnd (capture : UInt64) : IO Unit
@[extern "gpumem_lean_capture_abort"] opaque captureAbort (capture : UInt64) : IO Unit
@[extern "gpumem_lean_capture_retain"] opaque captureRetain (capture : UInt64) : IO Unit
@[extern "gpumem_lean_capture_release"] opaque captureRelease (capture : UInt64) : IO Unit

@[extern "gpumem_lean_reserve"] opaque reserve (bytes timeoutMs : UInt64) : IO UInt64
@[extern "gpumem_lean_reservation_release"] opaque reservationRelease (r : UInt64) : IO UInt64
@[extern "gpumem_lean_reservation_end"] opaque reservationEnd (r : UInt64) : IO Unit
@[extern "gpumem_lean_reservation_attach"] opaque reservationAttach (r : UInt64) : IO Unit
@[extern "gpumem_lean_reservation_detach"] opaque reservationDetach (r : UInt64) : IO Unit
@[extern "gpumem_lean_reservation_info"] opaque reservationInfo (r : UInt64) : IO (Array UInt64)

@[extern "gpumem_lean_stats"] opaque stats (device : UInt32) : IO (Array UInt64)
@[extern "gpumem_lean_device"] opaque device : IO UInt32
@[extern "gpumem_lean_device_set"] opaque deviceSet (device : UInt32) : IO Unit
@[extern "gpumem_lean_limit"] opaque limit (device : UInt32) (bytes : USize) : IO Unit
@[extern "gpumem_lean_trim"] opaque trim (keepBytes : USize) : IO Unit
@[extern "gpumem_lean_validate"] opaque validate : IO Unit
@[extern "gpumem_lean_version"] opaque version : IO String
@[extern "gpumem_lean_backend"] opaque backend : IO String

end Gpumem.Raw
