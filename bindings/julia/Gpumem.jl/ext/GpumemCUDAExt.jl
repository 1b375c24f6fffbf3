# Beside CUDA.jl: its streams and its arrays. Loaded by Julia 1.9 and newer when both packages are.
module GpumemCUDAExt

using CUDA
using Gpumem

Gpumem.Stream(s::CUDA.CuStream) = Gpumem.Stream(Ptr{Cvoid}(UInt(reinterpret(UInt, s.handle))))

"""
    CuArray{T}(buffer, dims...)

A CUDA.jl array on a buffer's memory, which it does not own. The buffer is not garbage-collected
while this array lives, but `free!` and an arena still end it. Views and reshapes of the array may
be separate arrays that keep nothing alive: they must not outlive it. Work on streams other than the
buffer's own is announced with [`record_stream!`](@ref).
"""
function CUDA.CuArray{T}(b::Gpumem.DeviceBuffer, dims::Integer...) where {T}
    shape = isempty(dims) ? (sizeof(b) ÷ sizeof(T),) : Int.(dims)
    prod(shape) * sizeof(T) <= sizeof(b) || throw(ArgumentError("$(shape) of $T do not fit $(sizeof(b)) bytes"))
    Gpumem.check(b, "CuArray", "buffer")
    array = unsafe_wrap(CUDA.CuArray, CUDA.CuPtr{T}(UInt(Gpumem.address(b))), shape; own = false)
    return Gpumem.hold!(array, b)
end

end
