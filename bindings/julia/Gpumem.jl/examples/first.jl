# A first program: docs/julia.md.
using Gpumem

weights = DeviceBuffer(ones(Float32, 1024))

loss = with_arena(name = "step") do arena
    activations = copyto!(DeviceBuffer(4096), weights)      # gone after the block, no matter who still holds it
    fill!(DeviceBuffer(4096), 0)                            # so is this
    copyto!(DeviceBuffer(4096), activations)                # returned, and so kept
end

println(sum(Vector{Float32}(loss)), " of ", loss)
display(stats())
