"""Values in, values out: records, series, forecast, policy, explanation. Time is an argument."""
