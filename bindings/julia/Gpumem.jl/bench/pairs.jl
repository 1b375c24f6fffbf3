# What a pair of an allocation and a free costs from Julia; see bindings/bench.sh.
using Gpumem
using Printf

const PAIRS = 1_000_000

function least(f)
    f()
    return minimum(@elapsed(f()) for _ in 1:7) / PAIRS * 1e9
end

# The two calls and nothing else.
function calls()
    out = Ref{Ptr{Cvoid}}(C_NULL)
    GC.@preserve out begin
        at = Base.unsafe_convert(Ptr{Ptr{Cvoid}}, out)
        for _ in 1:PAIRS
            Gpumem.C.malloc_async(4096, C_NULL, at) == 0 && Gpumem.C.free_async(out[], C_NULL) == 0 || error(Gpumem.last_error())
        end
    end
end

freed() = for _ in 1:PAIRS
    free!(DeviceBuffer(4096))
end

collected() = (for _ in 1:PAIRS
    DeviceBuffer(4096)
end; GC.gc())

in_one_arena() = with_arena(_ -> (freed(); nothing))

@printf("Julia  malloc_async, free_async            %6.1f ns\n", least(calls))
@printf("Julia  free!(DeviceBuffer(4096))           %6.1f ns\n", least(freed))
@printf("Julia  the same in an arena                %6.1f ns\n", least(in_one_arena))
@printf("Julia  DeviceBuffer(4096), collected       %6.1f ns\n", least(collected))
