"""The forms, in the order in which they are listed and tried."""

from autoloop._forms.associative import Associative
from autoloop._forms.distribute import Distribute
from autoloop._forms.eager import Eager
from autoloop._forms.inline import Inline
from autoloop._forms.python import Python
from autoloop._forms.unroll import Unroll
from autoloop._forms.until import Until
from autoloop._forms.vmap import Vmap

FORMS = (Unroll(), Inline(), Vmap(), Distribute(), Until(), Associative(), Python(), Eager())
