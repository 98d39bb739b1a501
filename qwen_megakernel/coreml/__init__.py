"""Core ML: a checkpoint as six models for Apple's Neural Engine, and a decoder on two of them."""
