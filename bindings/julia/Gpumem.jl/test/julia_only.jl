# What there is in Julia alone.

# Runs a program in another Julia, with other settings; gives all that it says.
function elsewhere(program, settings...)
    julia = joinpath(Sys.BINDIR, Base.julia_exename())
    project = dirname(@__DIR__)
    out = IOBuffer()
    command = ignorestatus(`$julia --startup-file=no --project=$project -e $program`)
    run(pipeline(addenv_(command, settings...); stdout = out, stderr = out))
    return String(take!(out))
end

# `addenv` of newer versions of Julia.
function addenv_(command, settings...)
    env = copy(ENV)
    env = Dict{String,String}(k => v for (k, v) in env)
    for (name, value) in settings
        value === nothing ? delete!(env, name) : (env[name] = value)
    end
    return setenv(command, env)
end

@testset "a library that is missing is said" begin
    said = elsewhere("using Gpumem; DeviceBuffer(1)", "GPUMEM_LIBRARY" => "/no/such/libgpumem.so")
    @test occursin("libgpumem cannot be loaded from \"/no/such/libgpumem.so\", which GPUMEM_LIBRARY names", said)
    said = elsewhere("using Gpumem; print(\"loaded\")", "GPUMEM_LIBRARY" => "/no/such/libgpumem.so")
    @test said == "loaded"
    if isempty(Gpumem.Libdl.find_library(["libgpumem.so.0", "libgpumem"]))
        said = elsewhere("using Gpumem; trim()", "GPUMEM_LIBRARY" => nothing)
        @test occursin("libgpumem is not on the loader's path: set GPUMEM_LIBRARY", said)
    end
    # A library, and not gpumem.
    libc = first(filter(p -> occursin("libc.so", p), Gpumem.Libdl.dllist()))
    said = elsewhere("using Gpumem; trim()", "GPUMEM_LIBRARY" => libc)
    @test occursin("has no gpumem_trim", said)
end

@testset "every export has a docstring" begin
    for name in names(Gpumem)
        name === :Gpumem && continue
        @test haskey(Base.Docs.meta(Gpumem), Base.Docs.Binding(Gpumem, name)) || name
    end
end

@testset "show" begin
    b = DeviceBuffer(4096)
    @test occursin(r"^DeviceBuffer\(4 KiB at 0x[0-9a-f]+, id \d+\)$", string(b))
    free!(b)
    @test endswith(string(b), ", gone)")
    arena = enter!("step")
    @test string(arena) == "Arena(\"step\", open)"
    in_arena(() -> DeviceBuffer(1536), arena)
    @test occursin("ArenaStats(\"step\", live 1 of 1.5 KiB, peak 1.5 KiB, 1 joined, 0 left)", string(arena_stats(arena)))
    @test occursin(r"^ArenaReport\(freed 1 of 1.5 KiB, kept 0 of 0 B\)$", string(exit!(arena)))
    @test string(arena) == "Arena(\"step\", ended)"
    text = sprint(show, MIME"text/plain"(), stats())
    @test occursin("Device 0 ($(Gpumem.backend()))\n  live ", text) && count(==('\n'), text) == 4
    @test string(Gpumem.default_stream) == "Stream(default)"
    reserve(r -> (@test string(r) == "Reservation(1 MiB)"), 1 << 20)
end

@testset "ranges and types are checked" begin
    b = DeviceBuffer(16)
    @test_throws ArgumentError fill!(b, 0; offset = 8, bytes = 9)
    @test_throws ArgumentError fill!(b, 0; offset = 17)
    @test_throws ArgumentError fill!(b, 0; offset = -1)
    @test_throws ArgumentError copyto!(b, zeros(3))
    @test_throws ArgumentError copyto!(b, ["text"])
    @test_throws ArgumentError copyto!(b, DeviceBuffer(8); bytes = 9)
    @test_throws ArgumentError DeviceBuffer(-1)
    @test_throws ArgumentError reserve(1; timeout = -1)
    @test_throws InexactError fill!(b, 256)
    free!(b)
end

@testset "what a block returns is kept" begin
    make = () -> DeviceBuffer(256)
    collect_all()
    for (result, count) in ((() -> make(), 1), (() -> (make(), 3, make()), 2), (() -> [make(), make(), make()], 3),
        (() -> (a = make(), b = "text"), 1), (() -> Dict(:w => make()), 1), (() -> Any[1, make()], 1), (() -> nothing, 0),
        (() -> [[make()], [make(), make()]], 3), (() -> [1.0, 2.0], 0))
        held = with_arena(arena -> (make(); result()))
        @test stats().allocations == count
        foreach(free!, kept(held))
    end
    undefined = () -> (v = Vector{DeviceBuffer}(undef, 3); v[2] = make(); v)
    circle = () -> (v = Any[make()]; push!(v, (v, Dict(:v => v))); v)
    for (result, count) in ((() -> :w => make(), 1), (() -> Set([make(), make()]), 2), (() -> Ref(make()), 1),
        (() -> Ref{Any}(Ref{DeviceBuffer}()), 0), (() -> Dict(make() => [make()]), 2), (undefined, 1), (circle, 1),
        (() -> Union{Nothing,DeviceBuffer}[nothing, make()], 1), (() -> view([make(), make()], 2:2), 1),
        (() -> transpose(Any[1]), 0), (() -> 1 => 2, 0))
        held = with_arena(arena -> (make(); result()))
        @test stats().allocations == count == length(kept(held))
        foreach(free!, kept(held))
    end
    chosen = Ref{Any}()
    with_arena(keep = r -> [chosen[]]) do arena
        chosen[] = make()
        make()
    end
    @test islive(chosen[]) && stats().allocations == 1
    free!(chosen[])
end

@testset "a block may end its arena itself" begin
    for finish in (exit!, abort!), which in (arena -> arena, arena -> current_arena())
        @test with_arena(arena -> (finish(which(arena)); 3)) == 3
        thrown = try
            with_arena(arena -> (finish(which(arena)); error("of the body's own")))
        catch e
            e
        end
        @test thrown == ErrorException("of the body's own")
    end
    @test with_arena(outer -> with_arena(inner -> (abort!(outer); 4))) == 4
    @test current_arena() === nothing
end

# Calls `f` while another thread has an arena attached: what `f` is given waits for that.
function with_worker(f)
    stage, holder, main = Threads.Atomic{Int}(0), Threads.Atomic{Int}(0), Threads.threadid()
    arena = Ref{Arena}()
    Threads.@threads for _ in 1:Threads.nthreads()
        if Threads.threadid() == main
            try
                f(a -> (arena[] = a; stage[] = 1; spin_until(stage, 2)))
            finally
                stage[] = 3
            end
        elseif Threads.atomic_cas!(holder, 0, 1) == 0
            spin_until(stage, 1)
            attached(() -> (stage[] = 2; spin_until(stage, 3)), arena[])
        end
    end
end

@testset "an arena that cannot end hides no exception" begin
    if Threads.nthreads() == 1
        println("   (an arena that another thread has attached needs two)")
    else
        arena, thrown, refusal = nothing, nothing, nothing
        with_worker() do attach
            thrown = try
                with_arena(a -> (arena = a; attach(a); error("of the body's own")))
            catch e
                e
            end
            refusal = try
                abort!(arena)
            catch e
                e
            end
        end
        @test thrown == ErrorException("of the body's own")
        @test refusal isa GpumemError && current_arena() === nothing
        @test abort!(arena).freed == 0
    end
end

@testset "a buffer has one owner" begin
    b = DeviceBuffer(256)
    said = try
        deepcopy(Any[1, b])
    catch e
        sprint(showerror, e)
    end
    @test occursin("deepcopy of a DeviceBuffer would give its memory a second owner", said)
    @test islive(b)
    free!(b)
end

mutable struct Wrapper
    address::Ptr{Cvoid}
end
@noinline wrap(bytes) = (b = DeviceBuffer(bytes); Gpumem.hold!(Wrapper(address(b)), b))
@noinline wrap_and_drop() = (wrap(256); nothing)
@noinline wrap_and_collect() = (w = wrap(256); collect_all(); GC.@preserve w stats().allocations)

@testset "what wraps a buffer keeps it" begin
    collect_all()
    before = stats().allocations
    @test wrap_and_collect() == before + 1
    collect_all()
    @test stats().allocations == before && isempty(Gpumem.held_buffers)
    # A collection while somebody has the lock leaves it to the next one.
    wrap_and_drop()
    lock(collect_all, Gpumem.held_lock)
    @test stats().allocations == before + 1
    collect_all()
    @test stats().allocations == before && isempty(Gpumem.held_buffers)
end

@testset "any timeout" begin
    for timeout in (0, 1e-9, 0.5, 1e15, 2.0^64 / 1000, 1e30, typemax(Int), Inf, 1 // 3)
        release!(reserve(1 << 20; timeout = timeout))
    end
    @test_throws ArgumentError reserve(1; timeout = NaN)
end

@testset "stats have the limit" begin
    @test stats().limit == 0
    limit!(64 << 20)
    @test stats().limit == 64 << 20
    limit!(0)
end

@testset "tasks have arenas of their own" begin
    before = stats().allocations
    arenas = map(1:16) do i
        Threads.@spawn with_arena(name = "task $i") do arena
            held = [DeviceBuffer(256)]
            for _ in 1:20
                yield()
                push!(held, DeviceBuffer(256))
                current_arena().name == "task $i" || error("another task's arena")
            end
            arena_stats(arena).live == 21 || error("$(arena_stats(arena))")
            with_arena(inner -> (yield(); DeviceBuffer(1); nothing))
            length(held)
        end
    end
    @test sum(fetch, arenas) == 16 * 21
    @test stats().allocations == before
end

struct Space
    tier::Int32
    id::UInt32
end
limit_space(bytes) = Gpumem.ok(ccall(Gpumem.Libdl.dlsym(Gpumem.library(), :gpumem_space_limit_set), Int32, (Space, UInt64),
    Space(1, 0), bytes))

@testset "the collector runs while a reservation is waited for" begin
    if Threads.nthreads() == 1
        println("   (waiting for another thread needs two)")
    else
        limit_space(64 << 20)
        held = reserve(48 << 20)
        started = Threads.Atomic{Int}(0)
        results = Vector{Any}(undef, 2)
        main = Threads.threadid()
        claimed = Threads.Atomic{Int}(0)
        Threads.@threads for _ in 1:Threads.nthreads()
            if Threads.threadid() == main
                spin_until(started, 1)
                GC.gc()
                release!(held)
                results[1] = :released
            elseif Threads.atomic_cas!(claimed, 0, 1) == 0
                started[] = 1
                r = try
                    reserve(48 << 20; timeout = 60)
                catch e
                    e
                end
                results[2] = r
            end
        end
        @test results[1] === :released
        @test results[2] isa Reservation
        results[2] isa Reservation && release!(results[2])
        limit_space(typemax(UInt64))
    end
end

# A copy that waits until it is told not to, by way of a semaphore in the array. The process ends
# where the collector waits for the copy.
const slow_copy = """
    using Gpumem
    const libc = Gpumem.Libdl.dlopen("libpthread.so.0")
    ccall(:alarm, Cuint, (Cuint,), 30)
    b = DeviceBuffer(64)
    Array(b)
    array = zeros(UInt8, 64)
    ccall(Gpumem.Libdl.dlsym(libc, :sem_init), Cint, (Ptr{UInt8}, Cint, Cuint), array, 0, 0)
    Gpumem.C.address_of_memcpy_async[] = Gpumem.Libdl.dlsym(libc, :sem_wait)
    started, main = Threads.Atomic{Int}(0), Threads.threadid()
    Threads.@threads for _ in 1:Threads.nthreads()
        if Threads.threadid() == main
            while started[] == 0
                GC.safepoint()
            end
            # Until the copy has certainly begun.
            foreach(_ -> (GC.gc(); Libc.systemsleep(0.05)), 1:20)
            print("collected")
            ccall(Gpumem.Libdl.dlsym(libc, :sem_post), Cint, (Ptr{UInt8},), array)
        elseif Threads.atomic_cas!(started, 0, 1) == 0
            copyto!(array, b)
        end
    end
    """

@testset "the collector runs while a copy waits" begin
    if Threads.nthreads() == 1
        println("   (waiting for another thread needs two)")
    else
        @test elsewhere(slow_copy, "GPUMEM_BACKEND" => "host", "JULIA_NUM_THREADS" => "2") == "collected"
    end
end

# Two streams, one of which is behind: a buffer that goes while the other still uses it. The host
# device counts work on the same memory that nothing orders.
const two_streams = """
    using Gpumem
    const N = 1 << 20
    @noinline function use(own, other, how)
        b = DeviceBuffer(fill(0x01, N); stream = own)
        c = DeviceBuffer(N; stream = other)
        how(b, c, other)
        return c
    end
    function rounds(how, drop)
        wrong = 0
        for _ in 1:10
            own, other = Stream(), Stream()
            c = use(own, other, (b, c, other) -> (how(b, c, other); drop(b)))
            GC.gc()
            again = fill!(DeviceBuffer(N; stream = own), 0x02)
            wrong += how === read && any(Vector{UInt8}(c) .!= 0x01)
            wrong += any(Vector{UInt8}(again) .!= 0x02)
            free!(c); free!(again)
            synchronize(own); synchronize(other)
        end
        return wrong
    end
    read(b, c, other) = copyto!(c, b)
    write(b, c, other) = copyto!(b, c; stream = other)
    fills(b, c, other) = fill!(b, 0x03; stream = other)
    recorded(b, c, other) = (record_stream!(b, other);
        Gpumem.ok(Gpumem.C.memset_async(address(b), 3, N, other.handle)))
    downloads(b, c, other) = copyto!(zeros(UInt8, N), b; stream = other)
    wrong = sum(rounds(how, drop) for how in (read, write, fills, recorded, downloads), drop in (free!, b -> nothing))
    out = Ref{UInt64}(0)
    ccall(Gpumem.Libdl.dlsym(Gpumem.library(), :gpumem_sim_reports_get), Int32, (Ptr{UInt64},), out)
    print("wrong ", wrong, ", unordered ", Int(out[]))
    """

@testset "memory is not reused while another stream uses it" begin
    simulated = ("GPUMEM_BACKEND" => "host", "GPUMEM_HOST_MODE" => "simulate")
    @test elsewhere(two_streams, simulated...) == "wrong 0, unordered 0"
    # Without the pool nothing can be announced: the functions wait.
    unpooled = replace(two_streams, "fills, recorded, downloads" => "fills, downloads")
    @test elsewhere(unpooled, simulated..., "GPUMEM_POOL" => "off") == "wrong 0, unordered 0"
end

# A default stream has the same handle on each device, and a buffer's stays that of its own device.
const two_devices = """
    using Gpumem
    const N = 1 << 20
    device(n) = Gpumem.ok(Gpumem.C.device_set(n))
    wrong(b, byte) = Int(any(Vector{UInt8}(b) .!= byte))
    function rounds(default)
        found = 0
        for _ in 1:10
            device(0)
            b = fill!(DeviceBuffer(N; stream = default), 0x01)
            device(1)
            found += wrong(b, 0x01)
            # Device 1's default stream is another stream, which is announced.
            c = copyto!(DeviceBuffer(N; stream = default), b)
            free!(b)
            again = fill!(DeviceBuffer(N; stream = b.stream), 0x02)
            device(0)
            fill!(c, 0x03; bytes = 1)
            found += Vector{UInt8}(c)[1:2] != [0x03, 0x01]
            found += wrong(again, 0x02)
            fill!(again, 0x04)
            device(1)
            synchronize(again.stream)
            fill!(again, 0x05; stream = default)
            free!(again)
            again = fill!(DeviceBuffer(N; stream = again.stream), 0x06)
            found += wrong(again, 0x06) + (Gpumem.current_device() != 1)
            free!(again; stream = c.stream)
            free!(c)
        end
        return found
    end
    found = sum(rounds(Stream(Ptr{Cvoid}(UInt(handle)))) for handle in 0:2)
    out = Ref{UInt64}(0)
    ccall(Gpumem.Libdl.dlsym(Gpumem.library(), :gpumem_sim_reports_get), Int32, (Ptr{UInt64},), out)
    print("wrong ", found, ", unordered ", Int(out[]))
    """

const two_reservations = """
    using Gpumem
    device(n) = Gpumem.ok(Gpumem.C.device_set(n))
    drawn(r) = Int(reservation_info(r).drawn)
    # Where the device of a buffer is the stream's, and where it is the current one.
    function draws(name)
        streams = map(n -> (device(n); name()), (0, 1))
        allocate(n) = (device(n); DeviceBuffer(4 << 20; stream = streams[n + 1]))
        device(0)
        reserve(8 << 20) do first
            alone = allocate(1)
            @assert drawn(first) == 0
            device(1)
            reserve(6 << 20) do second
                buffers = [allocate(0), allocate(1)]
                @assert (drawn(first), drawn(second)) == (4 << 20, 4 << 20)
                for n in (0, 1)
                    text = try allocate(n); allocate(n); "" catch e; sprint(showerror, e) end
                    @assert occursin("OUT_OF_MEMORY", text) text
                end
                foreach(free!, buffers)
            end
            free!(alone)
        end
        # One that is released is refused on either device.
        device(0)
        for n in (0, 1)
            text = try reserve(r -> (release!(r); allocate(n)), 1 << 20); "" catch e; sprint(showerror, e) end
            @assert occursin("GPUMEM_ERROR_INVALID", text) text
        end
    end
    draws(() -> Gpumem.default_stream)
    draws(Stream)
    print("drawn")
    """

@testset "a reservation is for its own device" begin
    @test elsewhere(two_reservations, "GPUMEM_BACKEND" => "host", "GPUMEM_HOST_DEVICES" => "2") == "drawn"
end

@testset "a buffer's default stream is its device's" begin
    simulated = ("GPUMEM_BACKEND" => "host", "GPUMEM_HOST_MODE" => "simulate", "GPUMEM_HOST_DEVICES" => "2")
    @test elsewhere(two_devices, simulated...) == "wrong 0, unordered 0"
end

@testset "with_stream" begin
    # A buffer that was used on the stream may go after the block.
    b = DeviceBuffer(256)
    lent = with_stream(s -> (fill!(b, 1; stream = s); s))
    free!(b)
    with_stream() do s
        @test s == lent
        with_stream(inner -> (@test inner != s))
    end
    thrown = try
        with_stream(s -> (destroy!(s); error("of the body's own")))
    catch e
        e
    end
    @test thrown == ErrorException("of the body's own")
    @test with_stream(s -> (synchronize(s); true))
    validate()
end
