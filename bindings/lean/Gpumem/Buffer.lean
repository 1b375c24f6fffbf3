import Gpumem.Raw

/-!
Streams and buffers. Sizes and offsets are bytes.
-/
namespace Gpumem

/-- A handle to a queue of work on a device, done in order. It must be a live stream wherever it is
passed. A `cudaStream_t` of another library works too. -/
structure Stream where
  handle : UInt64

namespace Stream

/-- The legacy default stream of the device that is current where it is used. A buffer's own stream
stays that of its device. -/
protected def default : Stream := ⟨0⟩

instance : Inhabited Stream := ⟨Stream.default⟩

/-- Creates a stream of the current device; end it with `destroy`. -/
def create : IO Stream := do
  let handle ← Raw.streamCreate
  return ⟨handle⟩

/-- Destroys a stream that `create` made. Its work still runs; memory allocated on it stays valid.
First free every buffer of another stream that `fill`, `copyFrom` or `recordStream` used on it:
gpumem uses the stream once more when such a buffer is freed. -/
def destroy (s : Stream) : IO Unit := Raw.streamDestroy s.handle

/-- Waits until everything submitted to the stream is done. -/
def sync (s : Stream) : IO Unit := Raw.streamSync s.handle

end Stream

/-- The idle streams of `withStream`, each with its device. -/
initialize idleStreams : IO.Ref (Array (UInt32 × Stream)) ← IO.mkRef #[]

/-- Runs `body` with a stream of the current device for its exclusive use, and waits for its work,
even after an exception. The stream is not destroyed but lent again, so buffers used on it may be
freed later. -/
def withStream {α : Type} (body : Stream → IO α) : IO α := do
  let device ← Raw.device
  let idle ← idleStreams.modifyGet fun all =>
    let mine := all.filter (fun entry => entry.1 == device)
    (mine.back?, all.filter (fun entry => entry.1 != device) ++ mine.pop)
  let s ← match idle with
    | some entry => pure entry.2
    | none => Stream.create
  let giveBack : IO Unit := do
    s.sync
    idleStreams.modify (fun all => all.push (device, s))
  let result ← try
      body s
    catch e =>
      -- A stream that cannot be waited for is not lent again; what `body` threw matters more.
      try giveBack catch _ => pure ()
      throw e
  giveBack
  return result

/-- Device memory, aligned to 256 bytes.

It is freed once, by whichever comes first: `Buffer.release`, the end of the arena it was allocated
in, or Lean's runtime when the last reference goes, on any thread. Each frees by the allocation's
number, so none can free something else that lives at the address by then. Using it afterwards is an
error. -/
abbrev Buffer := Raw.Buffer

namespace Buffer

/-- Allocates `bytes`, not cleared, in the order of `stream`, in the thread's current arena if it
has one. 0 bytes give a buffer too. Fails with `GPUMEM_ERROR_OUT_OF_MEMORY`. -/
def alloc (bytes : USize) (stream : Stream := Stream.default) : IO Buffer := Raw.bufferAlloc bytes stream.handle

/-- Frees the buffer in the order of the stream it was allocated on. Does not wait. Does nothing
when the buffer is gone already. -/
def release (b : Buffer) : IO Unit := Raw.bufferRelease b

/-- Like `release`, in the order of `stream`. -/
def releaseOn (b : Buffer) (stream : Stream) : IO Unit := Raw.bufferReleaseOn b stream.handle

/-- Whether the buffer's memory is still live: neither freed nor ended with an arena. It stays false
when another allocation gets the address. -/
def isLive (b : Buffer) : IO Bool := Raw.bufferIsLive b

/-- The device address, for foreign calls. The host must not read it. Keep a reference to the buffer
for as long as the address is used. -/
def addr (b : Buffer) : IO UInt64 := Raw.bufferAddr b

/-- A number that no other allocation of this process has had or will have. -/
def id (b : Buffer) : IO UInt64 := Raw.bufferId b

/-- How many bytes were asked for. -/
def bytes (b : Buffer) : IO USize := Raw.bufferBytes b

/-- Fails unless the buffer may be used. With `GPUMEM_ARENA_DEBUG=check` the error names the arena
that freed it: `use-after-arena-free: add lhs was reclaimed by arena_exit at depth 0 (arena 7
"step", ...)`. -/
def check (b : Buffer) (op : String := "use") (operand : String := "buffer") : IO Unit := Raw.bufferCheck b op operand

/-- The stream that an operation runs on: the one that was named, else the buffer's own. -/
private def handleOf (named : Option Stream) : UInt64 :=
  match named with
  | some s => s.handle
  | none => Raw.ownStream

/-- Fills `bytes` from `offset` on with a byte, in the order of `stream`. The defaults are all that
follows `offset`, and the buffer's own stream. Another stream must stay alive until the buffer is
gone. -/
def fill (b : Buffer) (byte : UInt8) (offset : USize := 0) (bytes : Option USize := none)
    (stream : Option Stream := none) : IO Unit := do
  let all ← b.bytes
  Raw.bufferFill b byte offset (bytes.getD (all - offset)) (handleOf stream)

/-- Copies `bytes` from one buffer to another in the order of `stream`. The defaults are all that
the source has after `fromOffset`, and the destination's stream. First wait for the work that the
source's stream has not done yet. Both buffers may be freed right after the call: their memory is
reused when the copy is done. For that, a stream that is not the buffer's own must stay alive until
the buffer is gone. -/
def copyFrom (to source : Buffer) (toOffset fromOffset : USize := 0) (bytes : Option USize := none)
    (stream : Option Stream := none) : IO Unit := do
  let all ← source.bytes
  Raw.bufferCopy to source toOffset fromOffset (bytes.getD (all - fromOffset)) (handleOf stream)

/-- Copies an array to the buffer, from `offset` on, by default on the buffer's own stream. Waits
until the copy is done. -/
def upload (b : Buffer) (data : ByteArray) (offset : USize := 0) (stream : Option Stream := none) : IO Unit := do
  Raw.bufferUpload b data offset (handleOf stream)

/-- Like `upload`, with 8 bytes for each number. -/
def uploadFloats (b : Buffer) (data : FloatArray) (offset : USize := 0) (stream : Option Stream := none) : IO Unit := do
  Raw.bufferUploadFloats b data offset (handleOf stream)

/-- Returns a copy of `bytes` from `offset` on; by default of all that follows `offset`, on the
buffer's own stream. Waits until the copy is done. -/
def download (b : Buffer) (offset : USize := 0) (bytes : Option USize := none) (stream : Option Stream := none) :
    IO ByteArray := do
  let all ← b.bytes
  Raw.bufferDownload b offset (bytes.getD (all - offset)) (handleOf stream)

/-- Returns a copy of `count` numbers of 8 bytes from `offset` on; by default of all that follow
`offset`, on the buffer's own stream. Waits until the copy is done. -/
def downloadFloats (b : Buffer) (offset : USize := 0) (count : Option USize := none) (stream : Option Stream := none) :
    IO FloatArray := do
  let all ← b.bytes
  Raw.bufferDownloadFloats b offset (count.getD ((all - offset) / 8)) (handleOf stream)

/-- Announces that the buffer is also used on `stream`, for kernels: after it is freed, reuse waits
for that stream too. `fill` and `copyFrom` announce their stream themselves. The stream must stay
alive until the buffer is gone. -/
def recordStream (b : Buffer) (stream : Stream) : IO Unit := Raw.bufferRecord b stream.handle

/-- Takes the buffer out of all arenas, for example a constant made in one step and cached for later
ones. -/
def escape (b : Buffer) : IO Unit := Raw.bufferEscape b

/-- Moves the buffer to the enclosing arena, or out of all arenas where there is none. -/
def promote (b : Buffer) : IO Unit := Raw.bufferPromote b

end Buffer
end Gpumem
