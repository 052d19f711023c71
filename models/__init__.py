"""The shared backbone, its inputs, small backbones for laptops, and export."""
