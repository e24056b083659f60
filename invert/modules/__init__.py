"""The modules that conversions return: functions, parameters, signatures, saving."""
