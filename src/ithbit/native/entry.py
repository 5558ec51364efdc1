from numba import njit
entry = njit(nogil=True, error_model="numpy")
