# The behaviours of bindings/CONFORMANCE.md, each a test set of that name.

const KIB = 1024
const MIB = 1024^2

# Calls `f`, which must be refused, and gives the error.
function refused(f, status)
    try
        f()
    catch e
        e isa GpumemError || rethrow()
        @test e.status == status
        return e
    end
    @test "not refused" == string(status)
    return GpumemError(0, "")
end

# Collects until nothing is left to collect: objects may hang in a register or two of the frames
# around.
collect_all() = foreach(_ -> GC.gc(), 1:3)

# Waits without yielding, so that the task stays on its thread.
function spin_until(flag::Threads.Atomic{Int}, value)
    while flag[] != value
        GC.safepoint()
        ccall(:jl_cpu_pause, Cvoid, ())
    end
end

const passed = String[]

# A test set that leaves nothing behind and a sound library.
function behaviour(f, name)
    set = @testset "$name" begin
        collect_all()
        @test stats().allocations == 0
        f()
        collect_all()
        @test stats().allocations == 0
        @test stats().requested == 0
        validate()
    end
    push!(passed, name)
    println("ok ", name)
    return set
end

# Everything that allocates is in functions of its own, so that no frame of a test keeps a buffer
# alive unseen.
@noinline make_and_drop(n, bytes) = (foreach(_ -> DeviceBuffer(bytes), 1:n); nothing)

behaviour("zero_bytes") do
    a, b = DeviceBuffer(0), DeviceBuffer(0)
    @test islive(a) && islive(b) && address(a) != address(b) && length(a) == 0
    @test allocation_id(a) != 0 && allocation_id(a) != allocation_id(b)
    free!(a); free!(b)
    @test !islive(a)
end

behaviour("round_trip") do
    numbers = collect(1.0:1000.0)
    b = DeviceBuffer(numbers)
    @test sizeof(b) == 8000 && Vector{Float64}(b) == numbers
    c = DeviceBuffer(8000)
    copyto!(fill!(c, 7), b; bytes = 4000)
    bytes = Array(c)
    @test bytes[1:4000] == reinterpret(UInt8, numbers)[1:4000] && all(bytes[4001:end] .== 7)
    free!(b); free!(c)
end

behaviour("free_once") do
    b = DeviceBuffer(4 * KIB)
    before = stats()
    free!(b); free!(b); finalize(b)
    after = stats()
    @test after.frees == before.frees + 1 && after.double_frees == before.double_frees && after.late_frees == before.late_frees
    @test !islive(b)
end

behaviour("double_free") do
    b = DeviceBuffer(4 * KIB)
    p = address(b)
    @test Gpumem.C.free_async(p, C_NULL) == Gpumem.OK
    before = stats().double_frees
    @test Gpumem.C.free_async(p, C_NULL) in (Gpumem.DOUBLE_FREE, Gpumem.UNKNOWN_POINTER)
    @test !isempty(Gpumem.last_error())
    @test stats().double_frees + stats().unknown_pointers > before
    finalize(b)
end

behaviour("unknown_pointer") do
    @test Gpumem.C.free_async(Ptr{Cvoid}(UInt(0x1000)), C_NULL) == Gpumem.UNKNOWN_POINTER
    @test occursin("0x1000", Gpumem.last_error())
end

behaviour("interior_free") do
    b = DeviceBuffer(4 * KIB)
    @test Gpumem.C.free_async(address(b) + 256, C_NULL) == Gpumem.UNKNOWN_POINTER
    @test islive(b)
    free!(b)
end

behaviour("out_of_memory_text") do
    trim()
    limit!(64 * MIB)
    e = refused(() -> DeviceBuffer(65 * MIB), Gpumem.OUT_OF_MEMORY)
    @test occursin(string(65 * MIB), e.text)
    @test occursin("GPUMEM_ERROR_OUT_OF_MEMORY: ", sprint(showerror, e))
    limit!(0)
    free!(DeviceBuffer(65 * MIB))
end

behaviour("finalizer_frees") do
    make_and_drop(20, 4 * KIB)
    collect_all()
    @test stats().allocations == 0
end

behaviour("finalizer_after_exit") do
    b = nothing
    with_arena() do arena
        b = DeviceBuffer(4 * KIB)
        nothing
    end
    before = stats()
    finalize(b)
    after = stats()
    @test after.late_frees == before.late_frees + 1 && after.frees == before.frees && after.double_frees == before.double_frees
end

behaviour("finalizer_after_address_reuse") do
    old = nothing
    with_arena() do arena
        old = DeviceBuffer(4 * KIB)
        nothing
    end
    new = DeviceBuffer(fill(0x5a, 4 * KIB))
    @test address(new) == address(old) && allocation_id(new) != allocation_id(old)
    finalize(old)
    @test islive(new) && !islive(old) && all(Array(new) .== 0x5a)
    free!(new)
end

behaviour("finalizer_on_other_thread") do
    buffers = [DeviceBuffer(4 * KIB) for _ in 1:64]
    main = Threads.threadid()
    threads = zeros(Int, 64)
    Threads.@threads for i in 1:64
        threads[i] = Threads.threadid()
        finalize(buffers[i])
    end
    @test Threads.nthreads() == 1 || any(threads .!= main)
    @test stats().allocations == 0
end

behaviour("hundred_thousand_buffers") do
    before = stats()
    make_and_drop(100_000, 256)
    collect_all()
    after = stats()
    @test after.mallocs == before.mallocs + 100_000 && after.frees == before.frees + 100_000
end

# 64 buffers of 4096 floats that are reachable across the exit, four times.
behaviour("exit_frees_all") do
    held = DeviceBuffer[]
    before = stats()
    for round in 1:4
        with_arena() do arena
            append!(held, [DeviceBuffer(4 * 4096) for _ in 1:64])
            @test stats().allocations == before.allocations + 64 && stats().frees == before.frees + 64 * (round - 1)
            nothing
        end
        @test stats().allocations == before.allocations && stats().requested == before.requested
        @test stats().frees == before.frees + 64 * round
    end
    @test !any(islive, held) && length(held) == 256
end

behaviour("exit_keeps") do
    kept = with_arena(name = "step") do arena
        DeviceBuffer(4 * KIB)
        b = DeviceBuffer(fill(0x11, 4 * KIB))
        (loss = b, epoch = 3)
    end
    @test stats().allocations == 1 && islive(kept.loss) && all(Array(kept.loss) .== 0x11)
    free!(kept.loss)
end

behaviour("exit_keeps_interior_pointer") do
    arena = enter!()
    b = in_arena(() -> DeviceBuffer(4 * KIB), arena)
    report = exit!(arena, [address(b) + 1000])
    @test report.kept == 1 && report.freed == 0 && islive(b)
    free!(b)
end

behaviour("exit_counts_odd_entries") do
    outside = DeviceBuffer(256)
    arena = enter!()
    b, gone = in_arena(() -> (DeviceBuffer(256), DeviceBuffer(256)), arena)
    free!(gone)
    report = exit!(arena, [b, b, outside, gone, C_NULL])
    @test (report.kept, report.duplicate, report.foreign, report.unknown) == (1, 1, 1, 1)
    @test report.depth == 0 && report.kept_bytes == 256
    free!(b); free!(outside)
end

behaviour("early_free_in_arena") do
    arena = enter!()
    a, b = in_arena(() -> (DeviceBuffer(256), DeviceBuffer(512)), arena)
    free!(a)
    @test arena_stats(arena).freed_early == 1
    report = exit!(arena)
    @test report.freed == 1 && report.freed_bytes == 512
end

behaviour("exception_keeps_nothing") do
    b = nothing
    thrown = try
        with_arena() do arena
            b = DeviceBuffer(4 * KIB)
            throw(DomainError(42, "of the body's own"))
        end
    catch e
        e
    end
    @test thrown isa DomainError && thrown.val == 42
    @test !islive(b) && current_arena() === nothing
end

behaviour("exception_ends_inner_arenas") do
    inner, b = nothing, nothing
    @test_throws ErrorException with_arena() do outer
        inner = enter!("forgotten")
        b = in_arena(() -> DeviceBuffer(256), inner)
        error("out of both")
    end
    @test !islive(b)
    refused(() -> exit!(inner), Gpumem.INVALID)
end

behaviour("nested_promote") do
    promoted = nothing
    with_arena() do outer
        with_arena() do inner
            promoted = DeviceBuffer(256)
            promote!(promoted)
            @test arena_stats(outer).live == 1 && arena_stats(inner).live == 0
            nothing
        end
        @test islive(promoted)
        nothing
    end
    @test !islive(promoted)
end

behaviour("inner_keep_ends_with_outer") do
    b, c = nothing, nothing
    result = with_arena() do outer
        b, c = with_arena(name = "inner") do inner
            (DeviceBuffer(256), DeviceBuffer(512))
        end
        @test islive(b) && islive(c) && arena_stats(outer).live == 2
        c
    end
    @test !islive(b) && islive(result)
    free!(result)
end

behaviour("outermost_keep_is_ordinary") do
    b = with_arena(arena -> DeviceBuffer(256))
    arena = Ref{Ptr{Cvoid}}(Ptr{Cvoid}(1))
    @test GC.@preserve(arena, Gpumem.C.arena_find(address(b), Base.unsafe_convert(Ptr{Ptr{Cvoid}}, arena))) == Gpumem.OK
    @test arena[] == C_NULL
    with_arena(arena -> nothing)
    @test islive(b)
    free!(b)
end

behaviour("exit_in_wrong_order") do
    outer = enter!()
    inner = in_arena(() -> enter!(), outer)
    e = refused(() -> exit!(outer), Gpumem.INVALID)
    @test !isempty(e.text)
    @test exit!(inner).depth == 1
    @test exit!(outer).depth == 0
end

behaviour("stale_arena") do
    arena = enter!()
    exit!(arena)
    refused(() -> exit!(arena), Gpumem.INVALID)
    refused(() -> arena_stats(arena), Gpumem.INVALID)
    refused(() -> in_arena(() -> DeviceBuffer(256), arena), Gpumem.INVALID)
end

behaviour("escape") do
    constant = nothing
    with_arena() do outer
        with_arena() do inner
            constant = DeviceBuffer(fill(0x33, 256))
            escape!(constant)
            nothing
        end
        nothing
    end
    @test islive(constant) && all(Array(constant) .== 0x33)
    escape!(constant)
    free!(constant)
end

# Eight tasks on all threads, which yield between allocations, so that Julia may move them.
behaviour("thread_attach") do
    mine = [DeviceBuffer[] for _ in 1:8]
    with_arena() do arena
        tasks = map(1:8) do i
            Threads.@spawn in_arena(arena) do
                for _ in 1:50
                    push!(mine[i], DeviceBuffer(256))
                    yield()
                end
            end
        end
        foreach(wait, tasks)
        @test arena_stats(arena).live == 400
        nothing
    end
    @test !any(islive, reduce(vcat, mine))
    # Foreign code that allocates by itself: the thread's own current arena.
    arena = enter!()
    p = Ref{Ptr{Cvoid}}(C_NULL)
    attached(arena) do
        GC.@preserve p Gpumem.ok(Gpumem.C.malloc_async(256, C_NULL, Base.unsafe_convert(Ptr{Ptr{Cvoid}}, p)))
    end
    @test exit!(arena).freed == 1
end

behaviour("other_threads_unaffected") do
    outside = nothing
    with_arena() do arena
        outside = fetch(Threads.@spawn DeviceBuffer(256))
        @test arena_stats(arena).live == 0
        nothing
    end
    @test islive(outside)
    free!(outside)
end

behaviour("exit_refused_while_attached") do
    if Threads.nthreads() == 1
        println("   (exit_refused_while_attached needs two threads)")
    else
        arena = enter!()
        stage = Threads.Atomic{Int}(0)
        main = Threads.threadid()
        # One iteration for each thread; those that are not needed end at once.
        holder = Threads.Atomic{Int}(0)
        Threads.@threads for i in 1:Threads.nthreads()
            if Threads.threadid() == main
                spin_until(stage, 1)
                refused(() -> exit!(arena), Gpumem.INVALID)
                refused(() -> abort!(arena), Gpumem.INVALID)
                stage[] = 2
            elseif Threads.atomic_cas!(holder, 0, Threads.threadid()) == 0
                attached(arena) do
                    stage[] = 1
                    spin_until(stage, 2)
                end
            end
        end
        @test exit!(arena).freed == 0
    end
end

behaviour("arena_name_and_stats") do
    with_arena(name = "forward") do arena
        a = DeviceBuffer(1000)
        b = DeviceBuffer(24)
        free!(b)
        s = arena_stats(arena)
        @test s.name == "forward" && s.live == 1 && s.live_bytes == 1000 && s.peak_bytes == 1024 && s.depth == 0
        @test s.joined == 2 && s.left == 1 && s.freed_early == 1
        @test current_arena().name == "forward"
        GC.@preserve a nothing
    end
end

behaviour("detector_message") do
    b = nothing
    with_arena(name = "step") do arena
        b = DeviceBuffer(4096)
        nothing
    end
    e = refused(() -> check(b, "add", "lhs"), Gpumem.USE_AFTER_FREE)
    @test occursin("use-after-arena-free: add lhs was reclaimed by arena_exit at depth 0 (arena ", e.text)
    @test occursin("\"step\", allocation $(Int(allocation_id(b))) of 4096 bytes)", e.text)
    e = refused(() -> fill!(b, 1), Gpumem.USE_AFTER_FREE)
    @test occursin("fill! buffer was reclaimed", e.text)
end

behaviour("detector_after_address_reuse") do
    old = nothing
    with_arena(name = "step") do arena
        old = DeviceBuffer(4096)
        nothing
    end
    new = DeviceBuffer(4096)
    @test address(new) == address(old)
    check(new, "add", "lhs")
    refused(() -> check(old, "add", "rhs"), Gpumem.USE_AFTER_FREE)
    free!(new)
end

behaviour("exit_races_finalizers") do
    for round in 1:20
        before = stats()
        arena = enter!()
        buffers = in_arena(() -> [DeviceBuffer(256) for _ in 1:1000], arena)
        go = Threads.Atomic{Int}(0)
        task = Threads.@spawn begin
            go[] = 1
            foreach(finalize, buffers)
        end
        Threads.nthreads() > 1 && spin_until(go, 1)
        report = exit!(arena)
        wait(task)
        after = stats()
        @test after.frees == before.frees + 1000 && after.double_frees == before.double_frees
        @test report.freed + (1000 - (after.late_frees - before.late_frees)) == 1000
    end
end

behaviour("capture_keeps_addresses") do
    with_stream() do s
        inside, graph = capture(stream = s) do
            b = DeviceBuffer(4 * MIB; stream = s)
            p = address(b)
            free!(b)
            p
        end
        others = [DeviceBuffer(4 * MIB; stream = s) for _ in 1:4]
        @test !any(o -> address(o) == inside, others)
        retain!(graph)
        release!(graph)
        free!(DeviceBuffer(256; stream = s))
        release!(graph)
        refused(() -> release!(graph), Gpumem.INVALID)
        foreach(free!, others)
    end
end

behaviour("capture_error_frees") do
    with_stream() do s
        b = nothing
        @test_throws ErrorException capture(stream = s) do
            b = DeviceBuffer(4 * KIB; stream = s)
            error("in the capture")
        end
        @test !islive(b)
        _, graph = capture(() -> nothing; stream = s)
        release!(graph)
    end
end

behaviour("reservation_draws") do
    reserve(8 * MIB) do r
        b = DeviceBuffer(1 * MIB)
        info = reservation_info(r)
        @test info.promised == 8 * MIB && info.drawn == 1 * MIB
        free!(b)
        @test reservation_info(r).drawn == 0
        fetch(Threads.@spawn in_reservation(r) do
            c = DeviceBuffer(2 * MIB)
            @test reservation_info(r).drawn == 2 * MIB
            free!(c)
        end)
    end
end

behaviour("reservation_refuses_more") do
    r = reserve(1 * MIB)
    e = refused(() -> in_reservation(() -> DeviceBuffer(2 * MIB), r), Gpumem.OUT_OF_MEMORY)
    @test occursin("reservation", e.text)
    @test release!(r) == 0
    refused(() -> release!(r), Gpumem.INVALID)
end

behaviour("reservation_ends_after_error") do
    r = nothing
    @test_throws ErrorException reserve(1 * MIB) do reservation
        r = reservation
        error("in the block")
    end
    refused(() -> reservation_info(r), Gpumem.INVALID)
    free!(DeviceBuffer(2 * MIB))
end

behaviour("trim_gives_back") do
    free!(DeviceBuffer(64 * MIB))
    synchronize()
    @test stats().mapped >= 64 * MIB
    trim()
    @test stats().mapped == 0
end

behaviour("stats_count") do
    before = stats()
    b = DeviceBuffer(1000)
    during = stats()
    @test during.mallocs == before.mallocs + 1 && during.requested == 1000 && during.live >= 1000 && during.mapped >= during.live
    free!(b)
    @test stats().frees == before.frees + 1
end
