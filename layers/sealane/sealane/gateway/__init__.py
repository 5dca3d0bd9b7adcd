"""What AWS hands over and wants back. Knows neither the SDK nor the lanes."""
