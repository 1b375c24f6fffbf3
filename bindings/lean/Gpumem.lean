import Gpumem.Raw
import Gpumem.Buffer
import Gpumem.Arena
import Gpumem.Capture
import Gpumem.Reserve
import Gpumem.Stats

/-!
Device memory that ends when the program says so, from libgpumem.

The first operation looks for the library in `GPUMEM_LIBRARY`, then where the system's loader looks.
If it is missing, that operation's error says so. Every operation is in `IO`, and errors are
`IO.userError` with the library's text.
-/
