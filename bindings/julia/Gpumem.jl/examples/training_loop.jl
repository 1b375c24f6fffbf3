# A training loop whose buffers the collector frees too late, with arenas and without.
#
#     GPUMEM_BACKEND=host GPUMEM_ARENA_DEBUG=check julia --project=bindings/julia/Gpumem.jl \
#         bindings/julia/Gpumem.jl/examples/training_loop.jl
#
# To Julia a buffer is a few words, so its collector has no reason to run, whatever there is on the
# device. Each step makes 50 buffers and garbage of the host's own (`PRESSURE`, in bytes a step),
# which is what makes the collector run at all.
using Gpumem

const BYTES = 4 * 4096
const OPERATIONS = 50
const STEPS = 200

# One operation: a result of its own from an operand.
function op(name, x, byte)
    check(x, name, "x")
    y = copyto!(DeviceBuffer(BYTES), x)
    return fill!(y, byte; bytes = 64)
end

function step(parameters, number, pressure)
    x = parameters
    for i in 1:OPERATIONS
        x = op("forward", x, (number + i) % 256)
    end
    garbage = zeros(UInt8, pressure)
    return op("update", x, (number + length(garbage)) % 256)
end

# Runs twice `STEPS` steps. Gives a row for each 50: step, MiB mapped, live buffers, late
# finalizers.
function train(pressure; arenas)
    GC.gc(); trim()
    parameters = fill!(DeviceBuffer(BYTES), 0)
    late = stats().late_frees
    rows = NTuple{4,Int}[]
    for number in 1:2STEPS
        old = parameters
        if arenas
            parameters = with_arena(_ -> step(old, number, pressure); name = "step")
            free!(old)
        else
            parameters = step(old, number, pressure)
        end
        s = stats()
        number % 50 == 0 && push!(rows, (number, s.mapped >> 20, s.allocations, s.late_frees - late))
    end
    free!(parameters)
    return rows
end

function table(title, rows)
    println(title, "\n   step  MiB mapped  live buffers  late finalizers")
    foreach(r -> println(lpad(r[1], 7), lpad(r[2], 12), lpad(r[3], 14), lpad(r[4], 17), "  ", "█"^cld(r[2], 8)), rows)
    return rows
end

# Four rounds of 64 buffers of 4096 floats, all still held at the exit.
function rounds()
    held, before = DeviceBuffer[], stats()
    for _ in 1:4
        arena = enter!("round")
        in_arena(() -> append!(held, [DeviceBuffer(BYTES) for _ in 1:64]), arena)
        println("round: ", exit!(arena))
    end
    after = stats()
    println("reclaimed ", Int(after.frees - before.frees), " buffers in 4 arenas, ", length(held), " still held, ",
        Int(after.allocations - before.allocations), " more live than before")
end

rounds()
flat = table("with arenas", train(0; arenas = true))
pressed = table("with arenas, and 256 KiB of garbage a step", train(256 * 1024; arenas = true))
grows = table("without arenas", train(0; arenas = false))
late = table("without arenas, and 256 KiB of garbage a step", train(256 * 1024; arenas = false))

x = Ref{DeviceBuffer}()
with_arena(_ -> (x[] = DeviceBuffer(BYTES); nothing); name = "step")
try
    op("mul", x[], 1)
catch e
    println("late use: ", sprint(showerror, e))
end

at(rows, number) = rows[number ÷ 50][2]
println("with arenas: ", at(flat, STEPS), " MiB after $STEPS steps, ", at(flat, 2STEPS), " after $(2STEPS); without: ",
    at(grows, STEPS), " and ", at(grows, 2STEPS))
ok = all(r -> r[2] == flat[1][2] && r[3] == 1, flat) && all(r -> r[2] == flat[1][2] && r[3] == 1, pressed) &&
    at(grows, 2STEPS) > 1.5 * at(grows, STEPS)
exit(ok ? 0 : 1)
